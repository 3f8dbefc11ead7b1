"""Small pictures of a probe, as SVG text: where a fault lies, how far rows reach, and how much noise there is."""

from __future__ import annotations

import html
from collections.abc import Sequence

from coalmine.probing.faults import Fault, Stage

INK, QUIET, PALE = "#1a1a1a", "#595959", "#d4d4d4"
RIGHT, WRONG, FILL = "#0b4f8a", "#9b2c00", "#fdf0ea"
_FONT = 'font-family="Arial, Helvetica, Liberation Sans, sans-serif"'


def _svg(width: int, height: int, body: Sequence[str], title: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{html.escape(title)}">{"".join(body)}</svg>'
    )


def _text(x: float, y: float, text: str, *, size: int = 12, color: str = INK, anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" {_FONT} font-size="{size}" fill="{color}" text-anchor="{anchor}">'
        f"{html.escape(text)}</text>"
    )


def stages(fault: Fault) -> str:
    """The way of the data through a private step, with the stage marked in which the fault lies."""
    box, gap, top, height = 78, 10, 8, 30
    parts = []
    for place, stage in enumerate(Stage):
        x = 4 + place * (box + gap)
        bad = stage is fault.stage
        parts.append(
            f'<rect x="{x}" y="{top}" width="{box}" height="{height}" rx="3" fill="{FILL if bad else "#ffffff"}" '
            f'stroke="{WRONG if bad else PALE}" stroke-width="{3 if bad else 1.5}"/>'
        )
        parts.append(_text(x + box / 2, top + 19, stage.value, color=WRONG if bad else QUIET, anchor="middle"))
        if place:
            parts.append(f'<path d="M{x - gap} {top + height / 2} h{gap}" stroke="{PALE}" stroke-width="1.5"/>')
        if bad:
            at = min(max(x + box / 2, 90), 4 + len(Stage) * (box + gap) - 90)
            parts.append(_text(at, top + height + 18, fault.name, color=WRONG, anchor="middle"))
    return _svg(len(Stage) * (box + gap), top + height + 26, parts, f"{fault.name}: in the stage {fault.stage.value}")


def influences(values: Sequence[float], allowed: float) -> str:
    """How far each row that was tried moves the sum, and how far it may."""
    width, height, left = 640, 86, 8
    most = 1.1 * max(allowed, *values)
    scale = (width - 2 * left) / most
    parts = [f'<path d="M{left} 50 h{width - 2 * left}" stroke="{PALE}" stroke-width="1.5"/>']
    for value in values:
        color = WRONG if value > 1.001 * allowed else RIGHT
        parts.append(f'<circle cx="{left + scale * value:.1f}" cy="50" r="5" fill="{color}" fill-opacity="0.35"/>')
    x = left + scale * allowed
    parts.append(f'<path d="M{x:.1f} 30 v40" stroke="{INK}" stroke-width="2" stroke-dasharray="5 3"/>')
    anchor = "end" if x > width / 2 else "start"
    parts.append(_text(x, 22, f"allowed: {allowed:.4g}", anchor=anchor))
    parts.append(_text(left + scale * max(values), 80, f"furthest: {max(values):.4g}", anchor="end"))
    return _svg(width, height, parts, f"rows move the sum by up to {max(values):.4g}, where {allowed:.4g} is allowed")


def noise(ratios: Sequence[tuple[str, float, float]], *, most: int = 24) -> str:
    """For each tensor, noise as a part of what is promised; the mark is the largest part that would be found."""
    shown = sorted(ratios, key=lambda one: one[1])[:most]
    row, left, width = 22, 250, 640
    scale = (width - left - 70) / max(1.2, *(ratio for _, ratio, _ in shown))
    parts = []
    for place, (name, ratio, found) in enumerate(shown):
        y = 24 + place * row
        color = WRONG if ratio < found else RIGHT
        parts.append(_text(left - 8, y + 12, name if len(name) <= 34 else f"…{name[-33:]}", anchor="end"))
        parts.append(f'<rect x="{left}" y="{y}" width="{scale * ratio:.1f}" height="14" fill="{color}"/>')
        mark = left + scale * found
        parts.append(f'<path d="M{mark:.1f} {y - 2} v18" stroke="{INK}" stroke-width="2"/>')
        parts.append(_text(left + scale * ratio + 6, y + 12, f"{ratio:.3g}"))
    height = 30 + len(shown) * row
    x = left + scale
    parts.append(f'<path d="M{x:.1f} 18 V{height - 4}" stroke="{INK}" stroke-width="1.5" stroke-dasharray="5 3"/>')
    parts.append(_text(x, 13, "promised", anchor="middle"))
    return _svg(width, height, parts, "noise in each tensor, as a part of what is promised")
