"""The page: a template, a style sheet, and what goes into them. Everything that is not markup of ours is escaped."""

from __future__ import annotations

import re
import shlex
from importlib import resources
from typing import TYPE_CHECKING, Any

import jinja2
import tomli_w
from markupsafe import Markup

from coalmine.records import EpsilonClaim, LowerBound
from coalmine.report import figures, one_run, persons, render, tables, words
from coalmine.report.figures import NARROW, WIDE, Figure

if TYPE_CHECKING:
    from coalmine.auditing.results import AdversaryResult, AuditResult


def render_template(context: dict[str, Any], *, name: str = "page.html.j2") -> str:
    """A template with the style sheet; escaping is on for every value that is not Markup."""
    folder = resources.files("coalmine.report") / "templates"
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda one: (folder / one).read_text(encoding="utf-8")),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["tight"] = tight
    style = Markup((folder / "page.css").read_text(encoding="utf-8"))  # our own file, not input
    return environment.get_template(name).render(style=style, **context)


def document(result: AuditResult) -> str:
    """The whole report."""
    settings = result.config
    return render_template(
        {
            "verdict": words.verdict(result),
            "outcome": result.verdict.outcome.value,
            "headline": words.headline(result),
            "caveats": words.caveats(result),
            "subject": _subject(result),
            "overview": _shown(figures.overview(result, width=WIDE), figures.overview(result, width=NARROW)),
            "meaning": words.meaning(result),
            "persons": _persons(result),
            "ladder": tables.ladder(result),
            "adversaries": [_adversary(result, one) for one in result.adversaries],
            "theory": _theory(result),
            "confidence": words.confidence(settings.audit.confidence),
            "repeat": _repeat(result),
            "mechanism": [(key, _plain(value)) for key, value in result.subject.details.items()],
            "versions": list(result.versions.items()),
            "runs": [(one.label, one.run) for one in result.adversaries],
            "seconds": f"{sum(one.seconds for one in result.adversaries):.0f}",
        }
    )


def _persons(result: AuditResult) -> list[dict[str, Any]]:
    """How sure each adversary with beliefs became."""
    return [
        {"label": one.label, "lines": lines, "figure": _shown(wide, narrow)}
        for one, lines, wide, narrow in persons.sections(result)
    ]


def tight(text: str) -> str:
    """Keep "ε ≤ 4.00" on one line."""
    return re.sub("([εδ]) ([≤≥≈=]) ", "\\1\u00a0\\2\u00a0", text)


def _adversary(result: AuditResult, one: AdversaryResult) -> dict[str, Any]:
    """One adversary's section."""
    return {
        "label": one.label,
        "proved": f"{words.epsilon(one.bound)} at {words.confidence(one.bound.confidence)} confidence"
        if one.bound.epsilon > 0.0
        else "nothing proved",
        "about": words.adversary(one),
        "notes": list(one.notes),
        "methods": _methods(one),
        "figures": [] if one.one_run else [_shown(figure) for figure in figures.of_adversary(result, one)],
        "run": one_run.shown(one_run.section_of(one), name=figures.slug(one)) if one.one_run else None,
    }


def _shown(figure: Figure, narrow: Figure | None = None) -> dict[str, Any]:
    """A figure for the page, with a narrow form for phones where it has one. The renderer escapes text in an SVG."""
    return {
        "title": figure.title,
        "caption": figure.caption,
        "svg": Markup(render.inline_svg(figure)),
        "narrow": Markup(render.inline_svg(narrow, suffix="-narrow")) if narrow else None,
    }


def _subject(result: AuditResult) -> str:
    """What was audited, in a line."""
    settings: Any = result.config
    known = result.subject.details
    if result.subject.own:
        return f"A training of one's own, {settings.train}, scored by {settings.score}; {words.trials(result)}"
    return (
        f"DP-SGD on {result.subject.name}: {known['rows']} rows, a model with {known['parameters']} parameters, "
        f"{known['steps']} steps at sampling rate {known['sampling rate']:.4g}, noise multiplier "
        f"{known['noise multiplier']:.4g}, clipping norm {known['clipping norm']:g}; {words.trials(result)}"
        + ("" if result.accuracy is None else f"; test accuracy {100 * result.accuracy:.1f}% without the canary")
    )


def _repeat(result: AuditResult) -> list[dict[str, Any]]:
    """What to do, and to type, to repeat the audit."""
    tree = result.config.model_dump(mode="json", exclude_none=True)
    if result.subject.given:
        return [
            {
                "text": f"Call coalmine.audit with the same {', '.join(result.subject.given)} and this config:",
                "code": tomli_w.dumps(tree),
            }
        ]
    if not result.subject.own:
        return [
            {"text": "Save this as audit.toml:", "code": tomli_w.dumps(tree)},
            {"text": "and run", "code": "coalmine audit audit.toml --report report.html"},
        ]
    settings: Any = result.config
    steps = []
    if settings.worlds and len(result.adversaries) == 1:
        steps.append({"text": "With the same code, run", "code": _command(settings)})
    return [*steps, {"text": "The settings, for Python's audit_function:", "code": tomli_w.dumps(tree)}]


def _command(settings: Any) -> str:
    """The command that audits a user's own training."""
    question, claimed = settings.audit, settings.mechanism
    given = [
        ("--train", settings.train),
        ("--score", settings.score),
        ("--worlds", settings.worlds),
        ("--claim-dpsgd", ",".join(str(value) for value in vars(claimed).values()))
        if claimed
        else ("--claim-epsilon", repr(question.claim_epsilon)),
        ("--trials", str(question.trials)),
        *(("--set", f"audit.{name}={getattr(question, name)!r}") for name in ("delta", "confidence", "seed")),
    ]
    return " ".join(["coalmine audit", *(f"{name} {shlex.quote(value)}" for name, value in given)])


def _methods(one: AdversaryResult) -> list[dict[str, Any]]:
    """What each method made of one adversary's scores."""
    return [
        {
            "counts": found is one.bound,
            "method": words.method(found),
            "epsilon": words.epsilon(found),
            "kind": words.kind(found),
            "confidence": words.confidence(found.confidence) if isinstance(found, LowerBound) else "none",
            "ceiling": words.down(found.ceiling)
            if isinstance(found, LowerBound) and found.ceiling is not None
            else "none",
            "relation": words.RELATIONS[found.relation],
            "assumptions": list(found.assumptions),
        }
        for found in (one.bound, *one.others)
    ]


def _theory(result: AuditResult) -> list[dict[str, Any]]:
    """What theory says, each with its kind; and what is claimed, which nobody has proved."""
    claimed = []
    if result.claim is not None and (result.subject.own or isinstance(result.claim, EpsilonClaim)):
        claimed.append(
            {
                "name": "Claim",
                "kind": "claimed, not proved here",
                "epsilon": f"ε ≤ {words.up(result.claim_epsilon)}",
                "analysis": "none" if isinstance(result.claim, EpsilonClaim) else "that of the claimed DP-SGD",
                "relation": words.RELATIONS[result.claim.relation],
                "assumptions": ["this is what the user claims; Coalmine has not proved it"],
            }
        )
    rows = [
        ("Guarantee", "proved for every attack", result.guarantee),
        ("Prediction", "a heuristic: the truth may be larger", result.heuristic),
    ]
    return claimed + [
        {
            "name": name,
            "kind": kind,
            "epsilon": words.epsilon(one),
            "analysis": one.analysis.replace("_", " "),
            "relation": words.RELATIONS[one.relation],
            "assumptions": list(one.assumptions),
        }
        for name, kind, one in rows
        if one is not None
    ]


def _plain(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
