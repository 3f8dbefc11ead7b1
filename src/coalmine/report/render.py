"""Charts into SVG, PNG and PDF, without a browser and without a network."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import vl_convert

from coalmine import _validate
from coalmine.errors import InvalidInputError
from coalmine.report import targets
from coalmine.report.figures import COLORS, Figure

FORMATS = ("svg", "png", "pdf")
_PIXELS = 2.0  # PNG pixels for one pixel of the specification: sharp on a dense screen and at 190 dots an inch in print


def _spec(figure: Figure) -> dict[str, Any]:
    found: dict[str, Any] = figure.chart.to_dict()
    return found


def svg(figure: Figure, *, prefix: str = "") -> str:
    """The figure as an SVG document. What it defines is numbered anew: the renderer counts on from figure to figure."""
    text: str = vl_convert.vegalite_to_svg(_spec(figure))
    names: dict[str, str] = {}
    for name in re.findall(r'\bid="([^"]+)"', text):
        names[name] = f"{prefix}part{len(names)}"
    for pattern in (r'(\bid=")([^"]+)(")', r"(url\(#)([^)]+)(\))", r'(href="#)([^"]+)(")'):
        text = re.sub(pattern, lambda found: found[1] + names.get(found[2], found[2]) + found[3], text)
    return text


def inline_svg(figure: Figure, *, suffix: str = "") -> str:
    """The figure as an element for a page: names of its own for what it defines, a size that follows the column.

    Several figures on one page must not share ids: a clip path of a hidden one would clip the others.
    """
    text = svg(figure, prefix=f"{figure.name}{suffix}-")
    # The page's own colors, so that they follow its light and dark form; without a style sheet they stay as they are.
    text = re.sub(
        r'\b(fill|stroke)="(#[0-9a-f]{6}|white)"',
        lambda found: f'{found[1]}="var(--{COLORS[found[2]]}, {found[2]})"' if found[2] in COLORS else found[0],
        text,
    )
    # The page describes the figure in words; the renderer's descriptions of single marks would only weigh on it.
    text = re.sub(r' (?:aria-label|aria-roledescription|role)="[^"]*"', "", text)
    text = text.replace(' xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"', "", 1)
    return re.sub(r"^<svg ", '<svg role="presentation" aria-hidden="true" focusable="false" ', text, count=1)


def files(figures: list[Figure], folder: Path, *, formats: tuple[str, ...] = FORMATS) -> list[Path]:
    """Write every figure in every format into a folder, which is made if it is not there."""
    for one in formats:
        _validate.choice("format", one, FORMATS)
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        paths = [(figure, kind, folder / f"{figure.name}.{kind}") for figure in figures for kind in formats]
        for _, _, path in paths:
            targets.check_target(path, name="figures", kind="figure")
        for figure, kind, path in paths:
            path.write_bytes(as_bytes(figure, kind))
            written.append(path)
    except OSError as error:
        raise InvalidInputError(f"figures = {str(folder)!r} cannot be written: {error.strerror}") from None
    return written


def as_bytes(figure: Figure, kind: str) -> bytes:
    """The figure as a file of that format."""
    if kind == "svg":
        return svg(figure).encode()
    if kind == "png":
        picture: bytes = vl_convert.vegalite_to_png(_spec(figure), scale=_PIXELS)
        return picture
    document: bytes = vl_convert.vegalite_to_pdf(_spec(figure))
    return document
