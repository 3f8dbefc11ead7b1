"""A small audit result without training: Gaussian scores, the bounds that an audit takes, and a verdict as given."""

import functools
import math

import numpy as np

from coalmine import bounds
from coalmine.accounting import last_iterate, standard
from coalmine.auditing import config
from coalmine.auditing.facts import AttackFacts, Subject
from coalmine.auditing.results import AdversaryResult, AuditResult
from coalmine.bounds import HoldOut, Optimistic, Sup
from coalmine.records import (
    DpSgd,
    EpsilonClaim,
    Guarantee,
    MechanismClaim,
    Outcome,
    Power,
    Relation,
    Scores,
    Verdict,
)
from coalmine.roles import View

MECHANISM = DpSgd(sample_rate=0.05, noise_multiplier=1.1, steps=100)
POWERS = {"access": "losses", "modification": "one row", "dataset": "not chosen", "adds": ""}


def adversary(
    name="clipbkd",
    *,
    mu=1.0,
    trials=120,
    wanted=None,
    copies=1,
    relation=Relation.ADD_REMOVE,
    options=None,
    seed=0,
    failed=(0, 0),
    view=View.BLACK_BOX,
    **facts,
):
    rng = np.random.default_rng([seed, copies])
    scores = Scores(rng.normal(size=trials // 2), rng.normal(mu, 1.0, size=trials // 2))
    attack = AttackFacts(
        name=name,
        options=options or {},
        view=view,
        relation=relation,
        copies=copies,
        powers=POWERS,
        notes=(),
        **facts,
    )
    common = {"delta": 1e-5, "confidence": 0.995, "copies": attack.copies_under(Relation.ADD_REMOVE)}
    quick = Sup(simulations=1999)
    return AdversaryResult(
        attack=attack,
        run=f"{seed:02x}{copies:02x}" * 16,
        wanted=wanted or trials,
        failed=failed,
        bound=bounds.lower_bound(scores, threshold=quick, **common),
        others=(
            bounds.lower_bound(scores, threshold=HoldOut(), **common),
            bounds.lower_bound(scores, method="gdp", threshold=quick, **common),
            bounds.lower_bound(scores, threshold=Optimistic(), **common),
        ),
        judgement=None,
        notes=(),
        seconds=12.5,
        scores=scores,
    )


def verdict(outcome, *, ceiling=3.0):
    """A verdict with the words that each outcome has."""
    words = {
        Outcome.REFUTED: ("clipbkd contradicts it with p = 0.0001 (at most 0.01 refutes)",),
        Outcome.INCONCLUSIVE: ("with 40 trials nothing could have been refuted: about 300 trials would do",),
        Outcome.CONSISTENT: (
            "nothing that any of 2 attacks saw contradicts the claim",
            "a training with half of this noise would have been refuted with probability 0.97",
        ),
    }[outcome]
    power = Power(alternative="a training with half of this noise", probability=0.97)
    return Verdict(
        outcome=outcome,
        confidence=0.99,
        reasons=words,
        power=power if outcome is Outcome.CONSISTENT else None,
        ceiling=ceiling,
    )


def result(*adversaries, claim=None, note="", trials=120, noise=1.1, outcome=None, missing=0):
    """An audit of two adversaries, or of those given; refuted where a bound goes beyond the promise."""
    mechanism = heuristic = None
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
    found = adversaries or (adversary("membership", mu=0.3), adversary(copies=4, mu=2.0, options={"copies": 4}))
    best = max(one.bound.epsilon for one in found)
    promise = claim or guarantee.epsilon
    settings = config.parse(
        {
            "training": {"steps": 100, "sample_rate": 0.05, "noise_multiplier": noise},
            "audit": {"trials": trials, "claim_epsilon": claim},
            "adversary": [{"name": one.name, **one.attack.options} for one in found],
        }
    )
    claimed = None
    if claim:
        claimed = EpsilonClaim(epsilon=claim, delta=1e-5)
    elif mechanism:
        claimed = MechanismClaim(mechanism=mechanism, delta=1e-5)
    if outcome is None:
        outcome = Outcome.REFUTED if best > promise else Outcome.CONSISTENT if claimed else Outcome.INCONCLUSIVE
    return AuditResult(
        config=settings,
        subject=Subject(
            name="digits",
            own=False,
            guarantee=guarantee,
            heuristic=heuristic,
            ran=mechanism,
            data_note=note,
            details={
                "rows": 1442,
                "parameters": 2410,
                "steps": 100,
                "sampling rate": 0.05,
                "noise multiplier": noise,
                "clipping norm": 1.0,
            },
        ),
        claim=claimed,
        claim_epsilon=promise,
        verdict=verdict(outcome),
        adversaries=tuple(found),
        belief={"guarantee": 1.0 / (1.0 + math.exp(-guarantee.epsilon)), "evidence": 1.0 / (1.0 + math.exp(-best))},
        advantage={"guarantee": 0.29 if noise else 1.0},
        versions={"coalmine": "0.1.0", "python": "3.11.7"},
        missing=missing,
    )


standard_result = functools.cache(result)
