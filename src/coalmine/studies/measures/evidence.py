"""What the trials of one or several audits prove: the best of the variants, corrected for selection."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from coalmine.auditing.config import AuditConfig
from coalmine.auditing.proof import prove, scores_of
from coalmine.auditing.setting import prepare
from coalmine.bounds.methods import METHODS
from coalmine.records import LowerBound
from coalmine.studies.cells import Cell, Scale, Study
from coalmine.studies.measures import Bench, Measure, Measured, behind

BOUNDS = ("proved", "if Gaussian", "if DP-SGD", "if last iterate")


def audits(study: Study, cell: Cell, scale: Scale) -> tuple[AuditConfig, ...]:
    """The cell's audit in every variant: changes to the config, from ``options.variants`` of the study or the scale.

    They are a list for all cells, or a table of lists by the cell's name; without any the cell is run as it is.
    """
    variants = scale.options.get("variants", study.options.get("variants", [{}]))
    if isinstance(variants, Mapping):
        variants = variants.get(cell.name, [{}])
    return tuple(scale.audit(cell, change) for change in variants)


def measure(study: Study, cell: Cell, scale: Scale, bench: Bench) -> Measured:
    """Every kind of bound, each the largest over variants and adversaries with the level shared among them.

    ``options.ours`` of the study says which of them stands beside the published value (by default "proved").
    """
    wanted = audits(study, cell, scale)
    played = []  # no setting is kept, which holds its data
    for settings in wanted:
        setting = prepare(settings, data_dir=bench.how.data_dir)
        facts = settings.audit, setting.mechanism, setting.guarantee.epsilon, setting.heuristic
        for section in settings.adversary:
            played += [(*facts, one) for one in bench.play(setting, section).by_score()]
    best: dict[str, float | None] = dict.fromkeys(BOUNDS)  # None: no adversary has evidence of this kind
    # Each bound is held against the guarantee of its own variant: the one that comes closest stands for all.
    proved, guarantee, accuracy, heuristic = 0.0, math.inf, None, None
    for question, mechanism, promised, expected, one in played:
        first, others = prove(
            scores_of(one.trials),
            one.attack,
            delta=question.delta,
            confidence=1.0 - (1.0 - question.confidence) / len(played),
            mechanism=mechanism,
        )
        own = dict.fromkeys(BOUNDS, 0.0)
        for name, epsilon in _named(first, others):
            own[name] = max(own[name], epsilon)
            best[name] = max(best[name] or 0.0, epsilon)
        mine = max(own["proved"], own["if DP-SGD"])
        if math.isinf(guarantee) or promised - mine < guarantee - proved:
            proved, guarantee, accuracy = mine, promised, one.accuracy
            heuristic = expected.epsilon if expected else None
    return Measured(
        ours=best[study.options.get("ours", "proved")] or 0.0,
        columns={**best, "heuristic": heuristic, "guarantee": guarantee, "accuracy": accuracy},
        proved=proved,
        guarantee=guarantee if guarantee < math.inf else None,
        **behind(wanted[0].audit, *{one.run: one for *_, one in played}.values()),
    )


def _named(first: LowerBound, others: tuple[object, ...]) -> Iterator[tuple[str, float]]:
    """The bounds of one adversary by the names of the columns."""
    yield "proved", first.epsilon
    for other in others:
        if isinstance(other, LowerBound) and other.relation is first.relation and not METHODS[other.method].decides:
            yield METHODS[other.method].short, other.epsilon


MEASURE = Measure(
    measure=measure,
    audits=audits,
    columns={
        "proved": "lower bound by the attack, no assumption on the mechanism",
        "if Gaussian": "assumes a Gaussian trade-off curve",
        "if DP-SGD": "assumes DP-SGD with this sampling rate and number of steps; its noise is estimated",
        "if last iterate": "the same, for one who sees the last iterate alone and linear losses",
        "heuristic": "the prediction for the last iterate; no guarantee",
        "guarantee": "upper bound on ε by the accountant: no lower bound may exceed it",
        "accuracy": "mean share of right answers on test rows without a canary, in the variant that comes closest",
    },
)
