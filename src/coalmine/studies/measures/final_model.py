"""What the final model alone reveals, beside the heuristic: the audits of last-iterate-2024."""

from __future__ import annotations

import math

from coalmine import bounds
from coalmine.accounting import encoding
from coalmine.auditing.config import AuditConfig
from coalmine.auditing.proof import scores_of
from coalmine.auditing.setting import prepare
from coalmine.records import Relation
from coalmine.roles import View
from coalmine.studies.cells import Cell, Scale, Study
from coalmine.studies.measures import Bench, Measure, Measured, behind


def audits(study: Study, cell: Cell, scale: Scale) -> tuple[AuditConfig, ...]:
    """The cell's audit: one adversary."""
    return (scale.audit(cell),)


def measure(study: Study, cell: Cell, scale: Scale, bench: Bench) -> Measured:
    """The bounds of one adversary's scores: nothing assumed, and DP-SGD's σ estimated in both families.

    The adversary knows q and T and estimates σ, as in the paper; thresholds are weighed by the curves of the family.
    ``options.ours`` of the study says which bound stands in front (by default "if last iterate").
    """
    (settings,) = audits(study, cell, scale)
    setting = prepare(settings, data_dir=bench.how.data_dir)
    section = settings.adversary[0]
    played = bench.play(setting, section)
    scores, mechanism = scores_of(played.trials), setting.mechanism
    assert mechanism is not None
    delta, confidence = settings.audit.delta, settings.audit.confidence
    rows = played.attack.copies_under(Relation.ADD_REMOVE)
    families = {"if last iterate": "last_iterate", "if DP-SGD": "standard"}
    if played.attack.reads_as is View.ALL_ITERATES:
        del families["if last iterate"]
    found = {
        name: bounds.dpsgd(
            scores, mechanism=mechanism, family=family, delta=delta, confidence=confidence, copies=rows, weigh="curves"
        ).epsilon
        for name, family in families.items()
    }
    found["proved"] = bounds.lower_bound(scores, delta=delta, confidence=confidence, copies=rows).epsilon
    guarantee = setting.guarantee.epsilon
    heuristic = math.nan if setting.heuristic is None else setting.heuristic.epsilon
    ours = found[study.options.get("ours", "if last iterate")]
    form = encoding.one_bit if section.options.get("form") == "one-bit" else encoding.linear
    return Measured(
        ours=ours,
        columns={
            "sigma": mechanism.noise_multiplier,
            "if last iterate": None,
            **found,
            "heuristic": heuristic,
            "guarantee": guarantee,
            "share of ε": ours / guarantee if guarantee < math.inf else None,
            "of heuristic": ours / heuristic,
            "exact": form(mechanism, delta=delta).epsilon if section.name == "encoding" else None,
            "accuracy": played.accuracy,
        },
        proved=max(found["proved"], found["if DP-SGD"]),
        guarantee=guarantee if guarantee < math.inf else None,
        **behind(settings.audit, played),
    )


MEASURE = Measure(
    measure=measure,
    audits=audits,
    columns={
        "sigma": "the noise multiplier",
        "if last iterate": "lower bound; assumes DP-SGD at this rate and number of steps, last iterate, linear losses",
        "if DP-SGD": "lower bound; assumes DP-SGD at this rate and number of steps, every iterate seen",
        "proved": "lower bound by the attack, without assumption on the mechanism",
        "heuristic": "the prediction for the last iterate; no guarantee",
        "guarantee": "upper bound on ε by the standard analysis: no attack may exceed it",
        "share of ε": "ours over the guarantee",
        "of heuristic": "ours over the heuristic",
        "exact": "what this encoding leaks at least, by theory",
        "accuracy": "mean share of right answers on test rows without a canary",
    },
)
