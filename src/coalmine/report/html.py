"""The page: a template, a style sheet, and what goes into them. Everything that is not markup of ours is escaped."""

from __future__ import annotations

import re
from importlib import resources
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import Markup, escape

from coalmine.records import EpsilonClaim, LowerBound
from coalmine.report import figures, gap, one_person, one_run, persons, render, repeat, rounding, summary, tables, words
from coalmine.report.figures import NARROW, WIDE, Figure

if TYPE_CHECKING:
    from coalmine.auditing.results import AdversaryResult, AuditResult


def environment(package: str, **filters: Any) -> jinja2.Environment:
    """The templates of a package; escaping is on for every value that is not Markup."""
    folder = resources.files(package) / "templates"
    found = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: (folder / name).read_text(encoding="utf-8")),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    found.filters.update(tight=tight, **filters)
    return found


def render_template(context: dict[str, Any], *, name: str = "page.html.j2") -> str:
    """A template with the style sheet."""
    style = (resources.files("coalmine.report") / "templates" / "page.css").read_text(encoding="utf-8")
    made = environment("coalmine.report", options=options).get_template(name)
    return made.render(style=Markup(style), **context)  # our own file, not input


class Once:
    """What is printed once and referred to after that: notes by their number, captions by the kind of their figure.

    >>> once = Once()
    >>> once.number("a"), once.number("b"), once.number("a"), once.notes
    (1, 2, 1, ['a', 'b'])
    """

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._captions: set[str] = set()

    def number(self, note: str) -> int:
        """The number of a note."""
        if note not in self.notes:
            self.notes.append(note)
        return self.notes.index(note) + 1

    def caption(self, figure: Figure) -> str:
        """The caption of a figure if none of its kind was captioned before, and what is to be said of this one."""
        new = figure.caption not in self._captions
        self._captions.add(figure.caption)
        return " ".join(part for part in (figure.caption if new else "", figure.note) if part)


def document(result: AuditResult) -> str:
    """The whole report."""
    once = Once()
    answer, reasons = summary.could_fail(result)
    context = {
        "verdict": f"{words.verdict_line(result)}.",
        "outcome": result.verdict.outcome.value,
        "names": summary.names(result),
        "date": summary.date(result),
        "tiles": summary.tiles(result),
        "answer": answer,
        "reasons": reasons,
        "facts": summary.facts(result),
        "command": repeat.command(result),
        "check_next": summary.check_next(result),
        "caveats": words.caveats(result),
        "overview": _shown(figures.overview(result, width=WIDE), figures.overview(result, width=NARROW)),
        "meaning": one_person.meaning(result),
        "persons": [
            {"label": one.label, "lines": lines, "figure": _shown(wide, narrow)}
            for one, lines, wide, narrow in persons.sections(result)
        ],
        "gap": _gap(result),
        "ladder": tables.ladder(result),
        "theory": _theory(result, once),
        "adversaries": [_adversary(result, one, once) for one in result.ranked],
        "confidence": rounding.confidence(result.config.audit.confidence),
        "repeat": repeat.steps(result),
        "mechanism": [(key, _plain(value)) for key, value in result.subject.details.items()],
        "versions": list(result.versions.items()),
        "runs": _runs(result),
        "seconds": f"{sum({one.run: one.seconds for one in result.adversaries}.values()):,.0f}",
    }
    return render_template({**context, "notes": once.notes})


def _runs(result: AuditResult) -> list[tuple[str, str]]:
    """Every run by what it is; those of a user's own training by the code that was trained."""
    known, found = result.subject.details, []
    for one in result.adversaries:
        code = f", audited: {result.subject.name}" if result.subject.own else ""
        found.append((f"{one.label}{code}", one.run))
        if one.control is not None:
            code = f": {known['control']}" if result.subject.own and "control" in known else ""
            found.append((f"{one.label}, control{code}", one.control))
    return found


def _gap(result: AuditResult) -> dict[str, Any] | None:
    """Where the gap comes from, where there is one that can be told."""
    found = result.gaps()
    if not found:
        return None
    return {
        "figure": _shown(gap.figure(found, width=WIDE), gap.figure(found, width=NARROW)),
        "attacks": [{"label": one.adversary, "lines": gap.lines(one)} for one in found],
    }


def tight(text: str) -> str:
    """Keep "ε ≤ 4.00" on one line."""
    return re.sub("([εδ]) ([≤≥≈=]) ", "\\1\u00a0\\2\u00a0", text)


def options(command: str) -> Markup:
    """A command whose options are not broken between their dashes and their names.

    >>> options("coalmine audit --trials 400")
    Markup('coalmine audit <span>--trials 400</span>')
    """
    first, *others = command.split(" --")
    return Markup(" ").join([escape(first), *(Markup("<span>--{}</span>").format(one) for one in others)])


def _adversary(result: AuditResult, one: AdversaryResult, once: Once) -> dict[str, Any]:
    """One adversary's section."""
    return {
        "label": one.label,
        "proved": f"{words.proved(one.bound)} at {rounding.confidence(one.bound.confidence)} confidence"
        if one.bound.epsilon > 0.0
        else "nothing proved",
        "about": words.adversary(one),
        "notes": list(one.notes),
        "methods": _methods(one, once),
        "figures": [_shown(figure, once=once) for figure in figures.of_adversary(result, one)],
        "run": one_run.told(one_run.section_of(one)) if one.one_run else None,
    }


def _shown(figure: Figure, narrow: Figure | None = None, *, once: Once | None = None) -> dict[str, Any]:
    """A figure for the page, with a narrow form for phones where it has one. The renderer escapes text in an SVG."""
    caption = f"{figure.caption} {figure.note}".strip() if once is None else once.caption(figure)
    return {
        "title": figure.title,
        "caption": caption,
        "svg": Markup(render.inline_svg(figure)),
        "narrow": Markup(render.inline_svg(narrow, suffix="-narrow")) if narrow else None,
    }


def figure_shown(wide: Figure, narrow: Figure) -> dict[str, Any]:
    """A figure in both widths, for the page of a probe."""
    return _shown(wide, narrow)


def _methods(one: AdversaryResult, once: Once) -> list[dict[str, Any]]:
    """What each method made of one adversary's scores."""
    return [
        {
            "counts": found is one.bound,
            "method": words.method(found),
            "epsilon": words.proved(found) if isinstance(found, LowerBound) else words.epsilon(found),
            "kind": words.kind(found)
            + ("" if found.relation is one.bound.relation else f"; {words.RELATIONS[found.relation]}"),
            "confidence": rounding.confidence(found.confidence) if isinstance(found, LowerBound) else "none",
            "ceiling": rounding.down(found.ceiling)
            if isinstance(found, LowerBound) and found.ceiling is not None
            else "none",
            "notes": [once.number(assumption) for assumption in found.assumptions],
        }
        for found in (one.bound, *one.others)
    ]


def _theory(result: AuditResult, once: Once) -> list[dict[str, Any]]:
    """What theory says, each with its kind; and what is claimed, which nobody has proved."""
    claimed = []
    if result.claim is not None and (result.subject.own or isinstance(result.claim, EpsilonClaim)):
        claimed.append(
            {
                "name": "Claim",
                "kind": "claimed, not proved here",
                "epsilon": f"ε ≤ {rounding.up(result.claim_epsilon)}",
                "analysis": "none" if isinstance(result.claim, EpsilonClaim) else "that of the claimed DP-SGD",
                "relation": words.RELATIONS[result.claim.relation],
                "notes": [once.number("this is what the user claims; Coalmine has not proved it")],
            }
        )
    rows = [
        ("Guarantee", "proved for every attack", result.guarantee),
        ("Prediction", "heuristic estimate, not a bound: the truth may be larger", result.heuristic),
    ]
    return claimed + [
        {
            "name": name,
            "kind": kind,
            "epsilon": words.epsilon(one),
            "analysis": one.analysis.replace("_", " "),
            "relation": words.RELATIONS[one.relation],
            "notes": [once.number(assumption) for assumption in one.assumptions],
        }
        for name, kind, one in rows
        if one is not None
    ]


def _plain(value: Any) -> str:
    return f"{value:,.6g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
