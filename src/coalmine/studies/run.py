"""Running a cell: the same trainings under the paper's own rule and under ours, then a verdict."""

from __future__ import annotations

import dataclasses
from typing import Any

from coalmine import bounds
from coalmine.auditing import Watcher, distance, play_adversary, prepare, scores_of
from coalmine.config import Execution
from coalmine.records import plain
from coalmine.store import Store
from coalmine.studies.cells import Cell, Scale, Study

VERDICTS = ("matches", "tighter", "falls short", "INVALID", "no published value")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CellResult:
    """One cell measured.

    ``ours`` follows the paper's rule (the best k for free, the threshold held out); ``paid`` chooses k and threshold on
    the same trainings and pays for both; ``paid_delta`` and ``gaussian`` are the paid bounds at the config's δ, with no
    assumption and with a Gaussian curve. Only bounds at that δ may be compared with ``guarantee``.
    """

    study: str
    cell: str
    published: float | None
    ours: float
    best_copies: int
    paid: float
    paid_delta: float
    gaussian: float
    guarantee: float
    heuristic: float | None
    verdict: str
    trials: int
    seconds: float
    by_copies: dict[int, dict[str, float]]

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types."""
        result: dict[str, Any] = plain(dataclasses.asdict(self))
        return result


def train_cell(cell: Cell, *, scale: Scale, store: Store, how: Execution, watcher: Watcher) -> None:
    """Train all that the cell needs and store it; what is stored already is not trained again."""
    for settings in cell.configs(copies=scale.copies, trials=scale.trials):
        setting = prepare(settings, data_dir=how.data_dir)
        play_adversary(setting, settings.adversary[0], store=store, how=how, watcher=watcher)


def run_cell(study: Study, *, cell: Cell, scale: Scale, store: Store, how: Execution, watcher: Watcher) -> CellResult:
    """Train what is missing, then bound the scores by the paper's rule and by ours, and compare."""
    by_copies: dict[int, dict[str, float]] = {}
    trials, seconds = 0, 0.0
    guarantee, heuristic = float("inf"), None
    audits = cell.configs(copies=scale.copies, trials=scale.trials)
    for settings in audits:
        setting = prepare(settings, data_dir=how.data_dir)
        played = play_adversary(setting, settings.adversary[0], store=store, how=how, watcher=watcher)
        guarantee = setting.guarantee.epsilon
        heuristic = setting.heuristic.epsilon if setting.heuristic else None
        trials += len(played.trials)
        seconds += played.trials.elapsed
        neighbours, scores = played.attack.neighbours, scores_of(played.trials)
        # The paper counts rows that differ; the guarantee counts rows added and removed.
        k, rows = neighbours.copies, distance(neighbours.relation, neighbours.copies)
        confidence = settings.audit.confidence
        shared, delta = 1.0 - (1.0 - confidence) / len(audits), settings.audit.delta
        by_copies[k] = {
            "ours": bounds.lower_bound(
                scores, delta=study.delta, confidence=confidence, copies=k, threshold=bounds.HoldOut()
            ).epsilon,
            "paid": bounds.lower_bound(scores, delta=study.delta, confidence=shared, copies=k).epsilon,
            "paid_delta": bounds.lower_bound(scores, delta=delta, confidence=shared, copies=rows).epsilon,
            "gaussian": bounds.lower_bound(scores, delta=delta, confidence=shared, copies=rows, method="gdp").epsilon,
        }
    best = {
        key: max(values[key] for values in by_copies.values()) for key in ("ours", "paid", "paid_delta", "gaussian")
    }
    return CellResult(
        study=study.name,
        cell=cell.name,
        published=cell.published,
        **best,
        best_copies=max(by_copies, key=lambda k: by_copies[k]["ours"]),
        guarantee=guarantee,
        heuristic=heuristic,
        verdict=verdict(
            best["ours"], published=cell.published, tolerance=scale.tolerance,
            proved=max(best["paid_delta"], best["gaussian"]), guarantee=guarantee,
        ),
        trials=trials,
        seconds=seconds,
        by_copies=by_copies,
    )  # fmt: skip


def verdict(ours: float, *, published: float | None, tolerance: float, proved: float, guarantee: float) -> str:
    """How our value compares with the paper's; INVALID when a bound at the guarantee's δ exceeds the guarantee.

    >>> verdict(0.77, published=0.75, tolerance=0.15, proved=2.4, guarantee=3.17)
    'matches'
    >>> verdict(0.77, published=0.75, tolerance=0.15, proved=3.5, guarantee=3.17)
    'INVALID'
    """
    if proved > guarantee:
        return "INVALID"
    if published is None:
        return "no published value"
    if abs(ours - published) <= tolerance:
        return "matches"
    return "tighter" if ours > published else "falls short"
