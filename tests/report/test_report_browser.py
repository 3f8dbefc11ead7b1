"""The page in a real browser: nothing requested, nothing wrong, nothing wider than the screen, and it prints."""

import re
import shutil

import pytest
import report_sample as sample

from coalmine.records import Outcome

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
SWITCHES = [
    "--no-sandbox",
    "--headless",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
]
LONG = "an_adversary_with_a_name_that_goes_on_and_on_without_a_single_place_to_break_it_anywhere"

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine (Debian: apt install chromium)")


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=SWITCHES)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    results = {
        "consistent": sample.standard_result(),
        "six": sample.result(*(sample.adversary(f"attack-{n}", mu=0.4 * n, trials=40, seed=n) for n in range(6))),
        "refuted": sample.result(sample.adversary(mu=4.0), claim=0.2),
        "inconclusive": sample.result(sample.adversary(trials=40), trials=40, outcome=Outcome.INCONCLUSIVE),
        "long names": sample.result(
            sample.adversary(LONG, options={"option": LONG}, trials=40), note=LONG * 3, trials=40
        ),
    }
    for name, result in results.items():
        result.to_html(folder / f"{name}.html")
    return folder


def opened(browser, path, width):
    """The page, what the console said, and what was requested."""
    complaints, requests = [], []
    page = browser.new_page(viewport={"width": width, "height": 800})
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("requestfailed", lambda request: complaints.append(f"failed: {request.url}"))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(path.as_uri(), wait_until="networkidle")
    return page, complaints, requests


def unfold(page):
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")


def overflowing(page, width):
    """What is wider than the screen."""
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    return page.evaluate(
        """width => [...document.querySelectorAll('body *')]
        .filter(one => one.getClientRects().length && !one.closest('svg') && !one.closest('thead'))
        .filter(one => one.getBoundingClientRect().right > width + 1).map(one => one.outerHTML.slice(0, 80))""",
        width,
    )


@pytest.mark.parametrize("width", [1440, 768, 390])
@pytest.mark.parametrize("name", ["consistent", "refuted", "inconclusive", "long names"])
def test_on_a_screen(browser, pages, name, width):
    path = pages / f"{name}.html"
    page, complaints, requests = opened(browser, path, width)
    assert complaints == []
    assert requests == [path.as_uri()]
    assert overflowing(page, width) == []
    assert page.locator("details.adversary").first.get_attribute("open") is not None
    assert page.locator("details.adversary[open]").count() == 1  # the strongest; the others are folded
    unfold(page)
    assert overflowing(page, width) == []
    shown = page.locator("figure div[role=img]:visible")
    assert shown.count() == page.locator("figure").count()
    assert page.locator("h1").inner_text().startswith("Consistent" if name == "long names" else name.capitalize())
    page.close()


@pytest.mark.parametrize("width", [1280, 390])
def test_text_in_figures_is_large_enough_to_read(browser, pages, width):
    page, _, _ = opened(browser, pages / "consistent.html", width)
    unfold(page)
    sizes = page.evaluate(
        """() => [...document.querySelectorAll('svg text')].filter(one => one.getClientRects().length)
        .map(one => [parseFloat(getComputedStyle(one).fontSize), one.getScreenCTM()])
        .map(([size, matrix]) => size * Math.hypot(matrix.a, matrix.b))"""
    )
    assert min(sizes) >= 9.5
    page.close()


@pytest.mark.parametrize("name", ["consistent", "refuted", "long names"])
def test_figures_stay_inside_their_frames(browser, pages, name):
    page, _, _ = opened(browser, pages / f"{name}.html", 390)
    unfold(page)
    outside = page.evaluate(
        """() => [...document.querySelectorAll('svg text')].filter(one => one.getClientRects().length)
        .filter(one => {
            const box = one.getBoundingClientRect(), frame = one.closest('svg').getBoundingClientRect();
            return box.left < frame.left - 1 || box.right > frame.right + 1;
        }).map(one => one.textContent)"""
    )
    assert outside == []
    page.close()


def test_the_first_screen_says_it(browser, pages):
    """Verdict, both tiles, whether it could have failed, date, versions and the command: without scrolling."""
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto((pages / "consistent.html").as_uri())
    for part in ("h1", ".tiles", "dl.facts", "dl.facts code", "nav"):
        box = page.locator(part).first.bounding_box()
        assert box["y"] + box["height"] <= 900, part
    page.close()


def test_what_stands_before_folding_is_short(browser, pages):
    page, _, _ = opened(browser, pages / "six.html", 1440)
    assert len(page.locator("main").inner_text().split()) <= 1500
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_the_light_and_in_the_dark(browser, pages, scheme):
    """A contrast of at least 4.5 to 1 (WCAG 2.1, level AA) between the paper and each color of text."""
    context = browser.new_context(color_scheme=scheme)
    page = context.new_page()
    page.goto((pages / "refuted.html").as_uri())
    colors = page.evaluate(
        """() => [...document.querySelectorAll('main *')].filter(one => one.getClientRects().length)
        .filter(one => [...one.childNodes].some(text => text.nodeType === 3 && text.textContent.trim()))
        .map(one => getComputedStyle(one)).map(style => style.fill !== 'rgb(0, 0, 0)' ? style.fill : style.color)"""
    )
    paper = luminance(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert (paper < 0.1) == (scheme == "dark")
    for color in set(colors):
        low, high = sorted((luminance(color), paper))
        assert (high + 0.05) / (low + 0.05) >= 4.5, color
    context.close()


def luminance(color):
    """The relative luminance of rgb(r, g, b)."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", color)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("name", ["consistent", "refuted", "six"])
def test_on_paper(browser, pages, name):
    page, complaints, _ = opened(browser, pages / f"{name}.html", 1280)
    printed = page.pdf(prefer_css_page_size=True)
    assert printed.startswith(b"%PDF")
    assert 20_000 < len(printed) < 3_000_000
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) <= 5
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 690, "height": 980})  # A4 less its margins, at 96 dots an inch
    assert page.evaluate("document.documentElement.scrollWidth") <= 690
    assert complaints == []
    page.close()


def test_the_page_needs_no_script(browser, pages):
    context = browser.new_context(java_script_enabled=False, viewport={"width": 390, "height": 800})
    page = context.new_page()
    page.goto((pages / "consistent.html").as_uri())
    assert page.locator("figure svg").count() == 2 * 2 + 2 * 3  # overview and gap come in two widths
    context.close()
