"""A small table that prints as text, shows itself in a notebook, and hands out plain rows."""

from __future__ import annotations

import dataclasses
import html
from typing import TYPE_CHECKING, Any

from coalmine.auditing.proof import METHODS
from coalmine.records import Estimate, LowerBound
from coalmine.report import rounding, words

if TYPE_CHECKING:
    from coalmine.auditing.results import AdversaryResult, AuditResult


@dataclasses.dataclass(frozen=True)
class Table:
    """Columns and rows of text; ``records`` are the same rows as numbers, one dictionary each.

    >>> print(Table(("name", "ε"), (("a", "1.00"),), ({"name": "a", "epsilon": 1.0},)))
    name  ε
    a     1.00
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    records: tuple[dict[str, Any], ...]

    def __str__(self) -> str:
        lines = [self.columns, *self.rows]
        widths = [max(len(line[at]) for line in lines) for at in range(len(self.columns))]
        return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)

    def _repr_html_(self) -> str:
        """For notebooks."""
        head = "".join(f"<th>{html.escape(cell)}</th>" for cell in self.columns)
        body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in self.rows)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def methods(result: AuditResult) -> Table:
    """Every number that the evidence gave, by adversary and method: what was proved, and what is only an estimate."""
    rows, records = [], []
    for one in result.adversaries:
        for found in (one.bound, *one.others):
            proved = isinstance(found, LowerBound)
            rows.append(
                (
                    one.label,
                    words.method(found),
                    words.epsilon(found),
                    words.kind(found),
                    rounding.confidence(found.confidence) if isinstance(found, LowerBound) else _interval(found),
                    rounding.down(found.ceiling)
                    if isinstance(found, LowerBound) and found.ceiling is not None
                    else "–",
                    words.RELATIONS[found.relation],
                    "; ".join(found.assumptions),
                )
            )
            records.append(
                {
                    "adversary": one.label,
                    "method": found.method,
                    "kind": "lower_bound" if proved else "estimate",
                    "epsilon": found.epsilon,
                    "confidence": found.confidence if isinstance(found, LowerBound) else None,
                    "ceiling": found.ceiling if isinstance(found, LowerBound) else None,
                    "threshold_rule": found.threshold_rule if isinstance(found, LowerBound) else None,
                    "relation": found.relation.value,
                    "headline": found is one.bound,
                }
            )
    columns = ("adversary", "method", "ε", "kind", "confidence", "ceiling", "neighbours", "rests on")
    return Table(columns, tuple(rows), tuple(records))


def notebook(result: AuditResult) -> str:
    """A result as a notebook shows it: the verdict, what would have been refuted, and a line for each attack."""
    rows = tuple(
        (
            one.label,
            one.view.value.replace("_", " "),
            words.proved(one.bound),
            words.proved(one.assumed) if one.assumed else "–",
            words.played(one),
        )
        for one in result.ranked
    )
    table = Table(("attack", "sees", "proved", _assumption(list(result.adversaries)), "from"), rows, ())
    lines = [f"<b>{html.escape(words.verdict_line(result))}.</b>"]
    lines += [html.escape(line) for line in words.could_have_failed(result)]
    return "".join(f"<p>{line}</p>" for line in lines) + table._repr_html_()


def ladder(result: AuditResult) -> Table | None:
    """What each adversary may see and do, what it has that those before it had not, and what that was worth in ε.

    The worth is how far its bound goes beyond the best bound before it; None where no power of an adversary is known.
    """
    climbers = [one for one in result.adversaries if one.attack.powers]
    if len(climbers) < 2:
        return None
    rows, records = [], []
    best = dict.fromkeys(("proved", "assumed"), 0.0)
    for one in climbers:
        found = {"proved": one.bound.epsilon, "assumed": one.assumed.epsilon if one.assumed else 0.0}
        worth = {name: max(0.0, found[name] - best[name]) for name in found}
        best = {name: max(best[name], found[name]) for name in found}
        rows.append(
            (
                one.label,
                one.attack.powers.get("adds") or "–",
                one.attack.powers["access"],
                one.attack.powers["modification"],
                one.attack.powers["dataset"],
                _climbed(one.bound, worth["proved"]),
                _climbed(one.assumed, worth["assumed"]) if one.assumed else "–",
            )
        )
        records.append(
            {
                "adversary": one.label,
                **one.attack.powers,
                **found,
                "worth": worth["proved"],
                "worth_assumed": worth["assumed"],
            }
        )
    columns = ("adversary", "what it adds", "sees", "changes", "other rows", "proved", _assumption(climbers))
    return Table(columns, tuple(rows), tuple(records))


def _climbed(bound: LowerBound, worth: float) -> str:
    """What is proved, and by how much that is more than on the rungs below."""
    return f"{words.proved(bound)} (+{rounding.down(worth)})" if bound.epsilon > 0.0 else words.proved(bound)


def _assumption(adversaries: list[AdversaryResult]) -> str:
    """The assumption that all have in common, as the head of a column."""
    heads = {METHODS[one.assumed.method].short for one in adversaries if one.assumed}
    return heads.pop() if len(heads) == 1 else "with an assumption"


def _interval(estimate: Estimate) -> str:
    """The interval of an estimate in words."""
    if estimate.interval is None:
        return "–"
    low, high = estimate.interval
    sure = f" with {estimate.credibility:.0%} credibility" if estimate.credibility else ""
    return f"{rounding.near(low)} to {rounding.near(high)}{sure}"
