"""The kinds of audits that a library gets: many trainings, or a report of a probe, an accountant or one run."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import coalmine
from coalmine.accounting import standard

CONFIDENCE = 0.99
PURE = 1e-9
"""Where a claim of pure ε-DP is tested: whoever keeps ε at δ = 0 keeps it at every δ."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trainings:
    """Many trainings in two worlds: ``train(dataset, seed)`` against a claim of (ε, δ)."""

    name: str
    train: Callable[..., Any]
    score: Callable[..., float]
    worlds: Any
    control: Callable[..., Any] | None = None
    epsilon: float | None = None
    mechanism: coalmine.DpSgd | None = None
    delta: float = PURE
    trials: int = 4000
    audit: Callable[..., Any] = coalmine.audit_function
    note: str = ""

    def play(self, store: Path) -> dict[str, Any]:
        """The verdict and what was proved."""
        said = _warnings_of(lambda: self.train(self.worlds.world1, 1)) if self.audit is coalmine.audit_function else []
        claim = {"claim_dpsgd": self.mechanism} if self.mechanism else {"claim_epsilon": self.epsilon}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = self.audit(
                self.train,
                self.score,
                worlds=self.worlds,
                control=self.control,
                delta=self.delta,
                trials=self.trials,
                confidence=CONFIDENCE,
                store=store,
                **claim,
            )
        strongest = result.strongest
        return {
            "game": "many trainings",
            "relation": strongest.bound.relation.value,
            "claimed": float(result.promised),
            "delta": self.delta,
            "trials": self.trials,
            "verdict": str(result.verdict),
            "proved": float(strongest.bound.epsilon),
            "reasons": list(result.verdict.reasons),
            "warning": said,
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """A probe, a check of an accountant, or a one-run audit: what ``run()`` gives, in a few words."""

    name: str
    run: Callable[[], Mapping[str, Any]]
    note: str = ""

    def play(self, store: Path) -> dict[str, Any]:
        """What was found."""
        del store
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return dict(self.run())


def _warnings_of(call: Callable[[], Any]) -> list[str]:
    """What the library itself says about this use: its own warnings, each once."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    library = [one for one in caught if "Privacy" in one.category.__name__]
    return list(dict.fromkeys(" ".join(str(one.message).split()) for one in library))


def probed(report: Any) -> dict[str, Any]:
    """A probe's report in the words of the table."""
    return {
        "game": "one step",
        "verdict": str(report.verdict),
        "found": [one.fault for one in report.findings],
        "reasons": list(report.verdict.reasons) if hasattr(report.verdict, "reasons") else [],
    }


def judged(result: Any, *, canaries: int) -> dict[str, Any]:
    """A one-run result about a claimed DP-SGD, in the words of the table."""
    claim = result.design.claim
    return {
        "game": "one training",
        "claimed": float(standard.epsilon(claim.mechanism, delta=claim.delta).epsilon),
        "delta": float(claim.delta),
        "verdict": str(result.verdict),
        "proved": float(result.epsilon),
        "canaries": canaries,
        "reasons": list(result.verdict.reasons),
    }
