"""The page of a probe: all findings and pictures on it, nothing from outside, nothing unescaped, fit for a phone."""

from __future__ import annotations

import re
import shutil

import pytest

from coalmine.errors import InvalidInputError
from coalmine.probing import faults, pictures
from coalmine.probing.findings import Measurement, ProbeReport
from coalmine.report import render
from coalmine.report.figures import NARROW, WIDE

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
HOSTILE = "<script>alert('row')</script>&amp;"
LONG = "a_module_with_a_name_that_goes_on_and_on_without_a_single_place_to_break_it_anywhere.weight"


def tensors(*ratios, name="layer"):
    return [
        {"tensor": f"{name} {place}", "ratio": ratio, "smallest_ratio_found": 0.97, "short": ratio < 0.95}
        for place, ratio in enumerate(ratios)
    ]


def report(*, ratios=(1.0, 0.98), influences=(0.2, 0.9, 1.0, 1.0), found=(), blind="", name="layer"):
    return ProbeReport(
        subject=f"{HOSTILE} step",
        measurements=(
            Measurement(
                name="sensitivity",
                sentence="The largest influence of one row is 1.",
                findings=tuple(found),
                blind=blind,
                details={"influences": list(influences), "allowed": 1.0},
            ),
            Measurement(name="noise", sentence="Noise.", details={"tensors": tensors(*ratios, name=name)}),
        ),
        level=1e-4,
        seconds=1.5,
        versions={"coalmine": "0"},
        details={"promise": {"clip_norm": 1.0, "divisor": None}},
    )


def finding(fault):
    return faults.finding(fault, f"One {HOSTILE} row.", number=2.5, allowed=1.0, witness=LONG, level=1e-5)


REPORTS = {
    "consistent": report(),
    "refuted": report(
        ratios=(1.0, 0.5), influences=(0.1, 1.0, 900.0), found=[finding(one) for one in faults.FAULTS[:3]], name=LONG
    ),
    "inconclusive": report(blind="no row moves the release"),
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    for name, one in REPORTS.items():
        one.to_html(folder / f"{name}.html")
    return folder


@pytest.mark.parametrize("name", REPORTS)
def test_the_page_says_what_was_found_and_needs_nothing_else(pages, name):
    text = (pages / f"{name}.html").read_text(encoding="utf-8")
    assert f'<h1 class="{name}">{name.capitalize()}' in text
    assert "<script" not in text
    assert "&lt;script&gt;alert(&#39;row&#39;)&lt;/script&gt;&amp;amp;" in text
    assert not re.findall(r'(?:src|href)="(?!#|data:)[^"]*"', text)
    found = len(REPORTS[name].findings)
    assert text.count("<figure") == found + 2
    assert len(set(re.findall(r'\bid="([^"]+)"', text))) == len(re.findall(r'\bid="([^"]+)"', text))
    assert text.count("One &lt;script") >= found


def test_pictures_say_what_is_wrong():
    assert "further than it may" in pictures.influences([0.5, 1.2], 1.0).title
    assert "no row goes further" in pictures.influences([0.5, 1.0], 1.0).title
    assert pictures.noise(tensors(1.0, 0.5)).title == "Noise is too small in 1 of 2 tensors"
    many = pictures.noise(tensors(*[1.0] * 40))
    assert "the 24 with the least noise" in many.caption
    values = pictures.influences([0.5, 900.0], 1.0).chart.to_dict()
    assert values["layer"][0]["encoding"]["y"]["scale"]["type"] == "log"


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_every_fault_is_marked_in_its_stage(width):
    for fault in faults.FAULTS:
        figure = pictures.stages(fault, width=width)
        (boxes,) = figure.chart.to_dict()["datasets"].values()
        assert [one["stage"] for one in boxes if one["here"]] == [fault.stage.value]
    assert fault.stage.value in render.svg(figure)


def test_a_page_that_cannot_be_written_is_an_error_in_words(tmp_path):
    with pytest.raises(InvalidInputError, match="this is a folder"):
        report().to_html(tmp_path)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine (Debian: apt install chromium)")
@pytest.mark.parametrize("width", [1280, 390])
def test_on_a_screen(pages, width):
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--headless", "--disable-gpu"])
        for name in REPORTS:
            path = pages / f"{name}.html"
            complaints, requests = [], []
            page = browser.new_page(viewport={"width": width, "height": 800})
            page.on("console", lambda message, seen=complaints: seen.append(message.text))
            page.on("request", lambda request, seen=requests: seen.append(request.url))
            page.goto(path.as_uri(), wait_until="networkidle")
            assert complaints == []
            assert requests == [path.as_uri()]
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert page.locator("figure div[role=img]:visible").count() == page.locator("figure").count()
            sizes = page.evaluate(
                """() => [...document.querySelectorAll('svg text')].filter(one => one.getClientRects().length)
                .map(one => [parseFloat(getComputedStyle(one).fontSize), one.getScreenCTM()])
                .map(([size, matrix]) => size * Math.hypot(matrix.a, matrix.b))"""
            )
            assert min(sizes) >= 9.5  # large enough to read
        browser.close()
