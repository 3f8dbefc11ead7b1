"""A small audit result without training: Gaussian scores, and the same bounds that an audit takes."""

import functools
import math

import numpy as np

from coalmine import bounds
from coalmine.accounting import last_iterate, standard
from coalmine.auditing import config
from coalmine.auditing.results import AdversaryResult, AuditResult
from coalmine.bounds import HoldOut, Optimistic, Sup
from coalmine.records import DpSgd, Guarantee, Relation, Scores
from coalmine.roles import View

MECHANISM = DpSgd(sample_rate=0.05, noise_multiplier=1.1, steps=100)


def adversary(
    name="clipbkd", *, mu=1.0, trials=120, copies=1, relation=Relation.ADD_REMOVE, options=None, seed=0, failed=0
):
    rng = np.random.default_rng([seed, copies])
    scores = Scores(rng.normal(size=trials // 2), rng.normal(mu, 1.0, size=trials // 2))
    distance = 2 * copies if relation is Relation.REPLACE else copies
    common = {"delta": 1e-5, "confidence": 0.995, "copies": distance}
    quick = Sup(simulations=1999)
    return AdversaryResult(
        name=name,
        options=options or {},
        view=View.BLACK_BOX,
        relation=relation,
        copies=copies,
        fingerprint=f"{seed:02x}{copies:02x}" * 16,
        failed=failed,
        bound=bounds.lower_bound(scores, threshold=quick, **common),
        others=(
            bounds.lower_bound(scores, threshold=HoldOut(), **common),
            bounds.lower_bound(scores, method="gdp", threshold=quick, **common),
            bounds.lower_bound(scores, threshold=Optimistic(), **common),
        ),
        notes=(),
        seconds=12.5,
        powers={"access": "losses", "modification": "one row", "dataset": "not chosen", "adds": ""},
        scores=scores,
    )


def result(*adversaries, claim=None, note="", trials=120, noise=1.1):
    """An audit of two adversaries, or of those given."""
    if noise:
        mechanism = MECHANISM.with_noise(noise)
        guarantee, heuristic = standard.epsilon(mechanism, delta=1e-5), last_iterate.epsilon(mechanism, delta=1e-5)
    else:
        guarantee = Guarantee(
            epsilon=math.inf,
            delta=1e-5,
            analysis="none",
            relation=Relation.ADD_REMOVE,
            assumptions=("there is no noise",),
        )
        heuristic = None
    found = adversaries or (adversary("membership", mu=0.3), adversary(copies=4, mu=2.0, options={"copies": 4}))
    best = max(one.bound.epsilon for one in found)
    promise = claim or guarantee.epsilon
    settings = config.parse(
        {
            "training": {"steps": 100, "sample_rate": 0.05, "noise_multiplier": noise},
            "audit": {"trials": trials, "claim_epsilon": claim},
            "adversary": [{"name": one.name, **one.options} for one in found],
        }
    )
    return AuditResult(
        config=settings,
        mechanism={
            "sample_rate": 0.05,
            "steps": 100,
            "noise_multiplier": noise,
            "clip": 1.0,
            "rows": 1442,
            "parameters": 2410,
        },
        data_note=note,
        guarantee=guarantee,
        heuristic=heuristic,
        adversaries=tuple(found),
        belief={"guarantee": 1.0 / (1.0 + math.exp(-guarantee.epsilon)), "evidence": 1.0 / (1.0 + math.exp(-best))},
        advantage={"guarantee": 0.29 if noise else 1.0},
        claim=promise,
        verdict="refuted" if best > promise else "consistent",
        versions={"coalmine": "0.1.0", "python": "3.11.7"},
    )


standard_result = functools.cache(result)
