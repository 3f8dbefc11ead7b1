"""A probe and a one-run result for stores of the view, made without a training."""

import dataclasses

import numpy as np

from coalmine.one_run import design, judge
from coalmine.probing import faults
from coalmine.probing.findings import Measurement, ProbeReport, quoted
from coalmine.records import EpsilonClaim, OneRunScores
from coalmine.store import Store

SECRET = "the secret of a row"


def probe(*, subject="a step of mine"):
    """A refuted probe with pictures, whose witness quotes a row."""
    found = [
        faults.finding(faults.NOISE_TOO_SMALL, "The noise is 0.5 of what is promised.", number=0.5, allowed=1.0),
        faults.finding(faults.NO_CLIPPING, "One row moves the sum.", number=9.0, witness=f"bias: {quoted(SECRET)}"),
    ]
    tensors = [{"tensor": f"layer {k}", "ratio": 1.0 - k / 4, "smallest_ratio_found": 0.9} for k in range(3)]
    influences = [0.1 * k for k in range(11)] + [9.0]
    return ProbeReport(
        subject=subject,
        measurements=(
            Measurement(name="noise", sentence=found[0].sentence, findings=(found[0],), details={"tensors": tensors}),
            Measurement(
                name="sensitivity",
                sentence=found[1].sentence,
                findings=(found[1],),
                details={"influences": influences, "allowed": 1.0},
            ),
            Measurement(name="order", sentence="Not compared.", blind="nothing moved"),
        ),
        level=1e-4,
        seconds=1.25,
        versions={"coalmine": "0"},
        details={"promise": {"clip_norm": 1.0, "noise_multiplier": 2.0, "divisor": None}},
    )


def one_run(*, canaries=450, apart=2.0):
    """A judged run of canaries that are this far apart."""
    rng = np.random.default_rng(5)
    included = rng.random(canaries) < 0.5
    scores = OneRunScores(included, rng.normal(size=canaries) + apart * included)
    result = judge(scores, design=design(EpsilonClaim(epsilon=1.0, delta=1e-5), canaries=canaries))
    return dataclasses.replace(result, canary_kind="low_variance", run="5f3a", digest="ab" * 32)


def keep_both(path, *, name=None):
    """Keep both in the store; their fingerprints."""
    with Store.open(path) as store:
        return (
            probe().keep(store, name=name or "the probe", tags=("steps",)),
            one_run().keep(store, name="the canaries", price={"with_canaries": 0.8, "without": 0.82}),
        )
