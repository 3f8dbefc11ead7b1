"""The rule of jagielski-2020: the best of several numbers of copies, the threshold held out; and ours, which pays."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from coalmine import bounds
from coalmine.auditing.config import AuditConfig, AuditSection
from coalmine.auditing.judge import Evidence
from coalmine.auditing.proof import scores_of
from coalmine.auditing.setting import prepare
from coalmine.records import Relation
from coalmine.studies.cells import Cell, Scale, Study
from coalmine.studies.measures import Bench, Measure, Measured, behind


def audits(study: Study, cell: Cell, scale: Scale) -> tuple[AuditConfig, ...]:
    """One audit for each number of copies; one in all if the adversary plants no copies."""
    who = cell.tree["adversary"][0]
    choices = [] if who["name"] == "membership" else [{"copies": k} for k in scale.options["copies"]]
    return tuple(scale.audit(cell, {"adversary": [{**who, **choice}]}) for choice in choices or [{}])


def measure(study: Study, cell: Cell, scale: Scale, bench: Bench) -> Measured:
    """Bound the same scores by the paper's rule and by ours.

    ``ours`` follows the paper's rule (the best k for free, the threshold held out) at the study's δ; ``paid`` chooses k
    and threshold on the same trainings and pays for both; ``proved`` and ``if Gaussian`` are the paid bounds at the
    config's δ. Only those may be compared with the guarantee.
    """
    wanted = audits(study, cell, scale)
    settings = [prepare(one, data_dir=bench.how.data_dir) for one in wanted]
    played = [bench.play(setting, setting.config.adversary[0]) for setting in settings]
    shared = 1.0 - (1.0 - wanted[0].audit.confidence) / len(wanted)
    with ThreadPoolExecutor(len(wanted)) as threads:  # the loops of numpy in a bound let other threads run
        bounded = threads.map(
            lambda pair: _bounds(pair[0].audit, pair[1], own=float(study.options["delta"]), shared=shared),
            zip(wanted, played, strict=True),
        )
        by_copies = {evidence.attack.copies: one for evidence, one in zip(played, bounded, strict=True)}
    guarantee, heuristic = settings[-1].guarantee.epsilon, settings[-1].heuristic
    best = {key: max(one[key] for one in by_copies.values()) for key in ("ours", "paid", "proved", "if Gaussian")}
    return Measured(
        ours=best["ours"],
        columns={
            "best k": max(by_copies, key=lambda k: by_copies[k]["ours"]),
            "paid": best["paid"],
            "proved": best["proved"],
            "if Gaussian": best["if Gaussian"],
            "heuristic": heuristic.epsilon if heuristic else None,
        },
        proved=max(best["proved"], best["if Gaussian"]),
        guarantee=guarantee,
        **behind(wanted[0].audit, *played),
        details={"by_copies": by_copies},
    )


def _bounds(question: AuditSection, played: Evidence, *, own: float, shared: float) -> dict[str, float]:
    """The bounds of one number of copies, at the paper's δ and at the guarantee's."""
    scores = scores_of(played.trials)
    # The paper counts rows that differ; the guarantee counts rows added and removed.
    k, rows = played.attack.copies, played.attack.copies_under(Relation.ADD_REMOVE)
    confidence, delta = question.confidence, question.delta
    held_out = bounds.lower_bound(scores, delta=own, confidence=confidence, copies=k, threshold=bounds.HoldOut())
    return {
        "ours": held_out.epsilon,
        "paid": bounds.lower_bound(scores, delta=own, confidence=shared, copies=k).epsilon,
        "proved": bounds.lower_bound(scores, delta=delta, confidence=shared, copies=rows).epsilon,
        "if Gaussian": bounds.lower_bound(scores, delta=delta, confidence=shared, copies=rows, method="gdp").epsilon,
    }


MEASURE = Measure(
    measure=measure,
    audits=audits,
    columns={
        "ours": "by the paper's rule: best k for free, threshold held out, at δ = 0",
        "paid": "the same, by a rule that pays for choosing k and threshold",
        "proved": "the paid bound at the δ of the guarantee, for one row added or removed",
        "if Gaussian": "the same with the assumption that the trade-off curve is a Gaussian one",
        "heuristic": "the prediction for the last iterate; no guarantee",
    },
)
