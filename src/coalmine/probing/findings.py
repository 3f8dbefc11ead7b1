"""What a probe gives back: what was measured, what was found, and the verdict that follows."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import coalmine
from coalmine.records import Outcome, Record, Verdict, plain

if TYPE_CHECKING:
    from coalmine.report.tables import Table
    from coalmine.store import Store


def quoted(text: object) -> str:
    """What may quote the data (values of a row, the message of an exception), marked so that it can be left out.

    >>> quoted("label 1")
    '‹label 1›'
    """
    return f"‹{str(text).replace('‹', '<').replace('›', '>')}›"


def without_quotes(tree: Any) -> Any:
    """Plain JSON types, with everything left out that :func:`quoted` marked.

    >>> without_quotes({"witness": "bias, with one row more: ‹label 1›"})
    {'witness': 'bias, with one row more: (not kept: may quote the data)'}
    """
    if isinstance(tree, dict):
        return {key: without_quotes(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [without_quotes(value) for value in tree]
    return re.sub("‹[^›]*›", "(not kept: may quote the data)", tree) if isinstance(tree, str) else tree


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding(Record):
    """A fault by its name.

    ``number`` is what was measured and ``allowed`` what the promise allows. ``witness`` says which row, tensor, step or
    process shows it, so that anybody can see it again. ``look_at`` says where in the training the cause usually is.
    ``level`` is the chance that a right training shows it: 0 for a fault that was seen, not inferred.
    """

    fault: str
    sentence: str
    look_at: str
    number: float | None = None
    allowed: float | None = None
    witness: str = ""
    level: float = 0.0

    @classmethod
    def from_dict(cls, tree: Mapping[str, Any]) -> Self:
        """The finding that :meth:`to_dict` wrote down."""
        names = {field.name for field in dataclasses.fields(cls)}
        return cls(**{name: _number(value) for name, value in tree.items() if name in names})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measurement:
    """One thing that was measured: ``findings`` is empty where it is as promised, ``blind`` says why it could not be.

    ``sentence`` is the result for people, ``details`` the numbers behind it. ``because`` is the fault that another
    measurement names and that explains why this one is not as promised either.
    """

    name: str
    sentence: str
    findings: tuple[Finding, ...] = ()
    blind: str = ""
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    because: str = ""

    @property
    def result(self) -> str:
        """In a few words: the faults found, "blind", "as promised", or that it is not, and which fault explains it."""
        names = list(dict.fromkeys(one.fault for one in self.findings))
        if self.because and not names:
            return f"not as promised: {self.because}"
        return ", ".join(names) or ("blind" if self.blind else "as promised")

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types."""
        return {
            "name": self.name,
            "sentence": self.sentence,
            "findings": [one.to_dict() for one in self.findings],
            "blind": self.blind,
            "details": plain(dict(self.details)),
            "because": self.because,
        }

    @classmethod
    def from_dict(cls, tree: Mapping[str, Any]) -> Self:
        """The measurement that :meth:`to_dict` wrote down."""
        findings = tuple(Finding.from_dict(one) for one in tree["findings"])
        return cls(**{**tree, "findings": findings, "details": dict(tree["details"])})


def _versions() -> dict[str, str]:
    """What ran: Python, Coalmine, and the libraries that are loaded."""
    loaded = {name: sys.modules.get(name) for name in ("numpy", "torch", "opacus", "jax")}
    return {"coalmine": coalmine.__version__, "python": platform.python_version()} | {
        name: str(module.__version__) for name, module in loaded.items() if module is not None
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProbeReport:
    """Every measurement of a probe, and the verdict: refuted where a fault was found, inconclusive where it was blind.

    ``level`` is the chance that a right training is refuted, shared among all statistical measurements.
    """

    subject: str
    measurements: tuple[Measurement, ...]
    level: float
    seconds: float
    versions: Mapping[str, str] = dataclasses.field(default_factory=_versions)
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All faults, in the order in which they were measured."""
        return tuple(finding for one in self.measurements for finding in one.findings)

    @property
    def verdict(self) -> Verdict:
        """The judge's word: a finding refutes; a measurement that was blind, or no measurement, leaves it open."""
        found = [one.sentence for one in self.findings]
        blind = [f"{one.name}: {one.blind}" for one in self.measurements if one.blind]
        if found:
            outcome, reasons = Outcome.REFUTED, found
        elif blind or not self.measurements:
            outcome, reasons = Outcome.INCONCLUSIVE, blind or ["nothing was measured"]
        else:
            outcome, reasons = Outcome.CONSISTENT, [one.sentence for one in self.measurements]
        return Verdict(outcome=outcome, confidence=1.0 - self.level, reasons=tuple(reasons))

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types."""
        return {
            "kind": "probe",
            "subject": self.subject,
            "verdict": self.verdict.to_dict(),
            "measurements": [one.to_dict() for one in self.measurements],
            "level": self.level,
            "seconds": self.seconds,
            "versions": dict(self.versions),
            "details": plain(dict(self.details)),
        }

    @classmethod
    def from_dict(cls, tree: Mapping[str, Any]) -> Self:
        """The report that :meth:`to_dict` wrote down; its verdict follows from its measurements."""
        names = ("subject", "level", "seconds", "versions", "details")
        measured = tuple(Measurement.from_dict(one) for one in tree["measurements"])
        return cls(measurements=measured, **{name: tree[name] for name in names})

    def keep(
        self,
        store: Store | str | os.PathLike[str],
        *,
        name: str | None = None,
        tags: Iterable[str] = (),
        messages: bool = False,
    ) -> str:
        """Keep the report in a store, for ``coalmine runs`` and ``coalmine view``.

        Args:
            store: an open store, or the path of one, which is made if it is not there.
            name: what people call it.
            tags: words to find it by.
            messages: whether to keep values of the rows that were tried and what exceptions said: they may quote the
                data.

        Returns:
            Its fingerprint.

        >>> import tempfile
        >>> report = ProbeReport(subject="a step", measurements=(), level=1e-4, seconds=0.5)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     len(report.keep(f"{folder}/coalmine.db", name="nightly"))
        64
        """
        from coalmine.store import Store, results

        tree = self.to_dict() if messages else without_quotes(self.to_dict())
        summary = {
            "subject": self.subject,
            "claim": {"kind": "step", **plain(dict(self.details.get("promise", {})))},
            "outcome": self.verdict.outcome.value,
            "faults": list(dict.fromkeys(one.fault for one in self.findings)),
            "size": len(self.measurements),
            "versions": dict(self.versions),
        }
        with Store.opened(store) as opened:
            return results.keep(opened, "probe", summary=summary, report=tree, name=name, tags=tags)

    def to_json(self) -> str:
        """As a JSON document."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)

    def table(self) -> Table:
        """One row for each measurement; ``print`` it, or take its ``records``."""
        from coalmine.report.tables import Table

        return Table(
            ("measure", "result", "in words"),
            tuple((one.name, one.result, one.sentence) for one in self.measurements),
            tuple(one.to_dict() for one in self.measurements),
        )

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write the report: one HTML file that needs nothing else. Needs the extra ``report``."""
        from coalmine import report
        from coalmine.probing import page

        report.check_packages()
        report.write_text(page.document(self), path)

    def in_words(self) -> str:
        """The verdict and every finding, for a log or a failed test."""
        lines = [f"{self.subject}: {self.verdict}."]
        for one in self.findings:
            seen = f" Witness: {one.witness}." if one.witness else ""
            lines.append(f"{one.fault}: {one.sentence}{seen} Look at: {one.look_at}")
        if not self.findings:
            lines += self.verdict.reasons
        return "\n".join(lines)

    @classmethod
    def join(cls, reports: Sequence[ProbeReport], *, subject: str) -> ProbeReport:
        """Several probes of one training as one: all measurements, and the levels added up."""
        return cls(
            subject=subject,
            measurements=tuple(one for report in reports for one in report.measurements),
            level=min(1.0, sum(report.level for report in reports)),
            seconds=sum(report.seconds for report in reports),
            versions={name: value for report in reports for name, value in report.versions.items()},
        )


def _number(value: Any) -> Any:
    """Infinities are texts in JSON."""
    return float(value) if value in ("infinity", "-infinity") else value
