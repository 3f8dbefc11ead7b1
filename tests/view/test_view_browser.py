"""The view in a real browser, served by the real command: live, filtered, compared, 390 px, dark, 10,000 runs."""

import re
import shutil
import subprocess
import sys
import time

import pytest
import result_store
import view_store
from view_store import HOSTILE

from coalmine.store import Store

httpx = pytest.importorskip("httpx", reason="httpx is not installed")
write_bundle = pytest.importorskip("coalmine.view.bundle", reason="the extra view is not installed").write_bundle
CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
SWITCHES = ["--no-sandbox", "--headless", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
CROWD = 10_000

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine (Debian: apt install chromium)")


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=SWITCHES)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def store(made, tmp_path_factory):
    """Three audits that were played, and ten thousand more."""
    path = view_store.small_store(made, tmp_path_factory.mktemp("crowd"))
    view_store.crowd(path, audits=CROWD)
    return path


@pytest.fixture(scope="module")
def address(store):
    """The address that ``coalmine view`` prints, with its token."""
    command = [sys.executable, "-u", "-m", "coalmine", "view", store]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            line = server.stdout.readline()
            found = re.search(r"http://127\.0\.0\.1:\d+/\?token=\S+", line)
            assert found, line + server.stdout.read()
            yield found[0]
            # Even with a stream open it ends at once, and says no more than that.
            _, audit = view_store.begun(store, view_store.names(store)["plain noise"], trials=320, name="never played")
            with httpx.Client(timeout=30) as reader:
                assert reader.get(found[0], follow_redirects=True).status_code == 200
                with reader.stream("GET", f"{found[0].partition('/?')[0]}/audits/{audit}/events") as stream:
                    assert next(stream.iter_lines()) == "event: progress"
                    server.terminate()
                    rest = server.stdout.read()
            assert server.wait(timeout=30) == 143, rest
        finally:
            server.kill()  # whatever failed: nobody waits for it
    assert rest.splitlines()[1:] == ["coalmine view: asked to end (SIGTERM)"]


@pytest.fixture
def visit(browser, address):
    """Open a page of the server; at the end nothing was complained of, and nobody else was asked for anything."""
    base, contexts, complaints, asked = address.partition("/?")[0], [], [], []

    def opened(path="/", *, width=1280, scheme="light"):
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(address)
        assert "token" not in page.url
        if path != "/":
            page.goto(base + path)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []
    assert [url for url in asked if not url.startswith((base, "data:"))] == []


def rows(page):
    return page.locator("table.audits tbody tr")


def drawn(page, name):
    figure = page.locator(f"figure[data-figure^={name}]").first
    figure.locator(".plot svg").wait_for()
    return figure


def is_within(page, width):
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_ten_thousand_runs_are_listed_filtered_and_sorted(visit):
    page = visit("/")
    assert f"{CROWD + 3:,} audits" in page.locator("#list").inner_text()
    assert rows(page).count() == 50
    page.get_by_role("link", name="Next").click()
    page.get_by_text("Page 2 of 201").wait_for()
    page.go_back()
    page.get_by_label("Find").fill("data 5 audit 0123")
    page.get_by_text("1 of 10,003 audits").or_(page.get_by_text("2 of 10,003 audits")).wait_for()
    assert "text=data" in page.url
    assert "data 5" in rows(page).first.inner_text()
    page.get_by_label("Find").fill("")
    page.get_by_label("Verdict").select_option("refuted")
    page.get_by_text(f"{CROWD // 3 + 1:,} of").wait_for()
    page.get_by_role("link", name="Proved").click()
    page.locator("th[aria-sort=descending]", has_text="Proved").wait_for()
    assert "audit 09997" in rows(page).first.inner_text()
    before = time.monotonic()
    page.get_by_role("link", name="Progress").click()
    page.locator("th[aria-sort=descending]", has_text="Progress").wait_for()
    assert time.monotonic() - before < 30.0


def test_a_running_audit_updates_itself(visit, store):
    like = view_store.names(store)["plain noise"]
    run, audit = view_store.begun(store, like, trials=480, name="a live one")
    with Store.open(store) as writer:
        writer.claim(run, range(30), limit=30)
        writer.put_many(run, {number: view_store.block(number, failed=(3,)) for number in range(10)})
        page = visit(f"/audits/{audit}")
        live = page.locator("#live")
        live.get_by_text("160 of 480").wait_for()
        drawn(page, "so-far")
        page.evaluate("window.same = true")
        writer.put_many(run, {number: view_store.block(number) for number in range(10, 20)})
        live.get_by_text("320 of 480").wait_for()
        assert "0 of 160, 10 of 160" in live.inner_text()
        assert "running" in live.inner_text()
        assert page.evaluate("window.same")  # nothing was loaded again
        writer.put_many(run, {number: view_store.block(number) for number in range(20, 30)})
        page.get_by_role("heading", name="Verdict").wait_for()  # all trials are there: judged
        drawn(page, "overview")


def test_two_audits_are_compared(visit):
    page = visit("/?text=noise")
    for name in ("plain noise", "half the noise"):
        page.get_by_label(f"Compare {name}", exact=True).check()
    page.get_by_role("button", name="Compare two audits").click()
    figure = drawn(page, "curves")
    assert "audit.trials" in page.locator("main").inner_text()
    assert "logarithmic" not in figure.locator(".plot svg").text_content()
    figure.get_by_label("logarithmic").check()
    figure.locator(".plot svg", has_text="logarithmic axes").wait_for()
    assert page.evaluate("window.owned") is None


def test_a_threshold_is_moved_by_keyboard(visit, store):
    page = visit(f"/audits/{view_store.names(store)['half the noise']}/attacks/0")
    figure = drawn(page, "scores")
    slider, output = figure.get_by_label("Move a threshold"), figure.locator("output")
    before = output.inner_text()
    slider.focus()
    page.keyboard.press("ArrowRight")
    assert output.inner_text() != before
    assert "exploratory" in output.inner_text()
    page.keyboard.press("Home")
    assert re.search(r"false alarms 9\d\.\d%", output.inner_text())  # the lowest threshold: nearly all are above it
    assert "not a valid bound" in figure.inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_by_day_and_by_night(visit, store, scheme):
    audits = view_store.names(store)
    first = audits["half the noise"]
    page = visit("/?text=noise", width=390, scheme=scheme)
    is_within(page, 390)
    for path in (f"/audits/{first}", f"/audits/{first}/attacks/0", f"/compare?audit={first}&audit={audits[HOSTILE]}"):
        page.goto(re.match(r"http://[^/]+", page.url)[0] + path)
        page.locator("figure .plot svg").first.wait_for()
        is_within(page, 390)
        assert page.evaluate("window.owned") is None
    back = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert back == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(21, 24, 27)")
    tilt = page.evaluate("getComputedStyle(document.querySelector('.plot svg')).filter")
    assert (tilt == "none") == (scheme == "light")


def test_everything_has_a_name_and_the_first_tab_skips(visit):
    page = visit("/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    nameless = page.evaluate(
        """() => [...document.querySelectorAll('input:not([type=hidden]), select, button, progress')]
        .filter(one => !one.getAttribute('aria-label') && !(one.labels && one.labels.length) && !one.textContent.trim())
        .map(one => one.outerHTML)"""
    )
    assert nameless == []


def test_the_files_open_without_a_server(browser, made, tmp_path):
    path = view_store.small_store(made, tmp_path)
    folder = tmp_path / "pages"
    with Store.open(path, create=False, read_only=True) as opened:
        written = write_bundle(opened, folder, audits=("plain noise", "half the noise"))
    assert sorted(folder.rglob("*.*")) == sorted(written)
    assert HOSTILE not in (folder / "index.html").read_text()
    context = browser.new_context(viewport={"width": 390, "height": 800})
    page = context.new_page()
    complaints, asked = [], []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto((folder / "index.html").as_uri())
    page.get_by_label("Find").fill("half")
    assert page.locator("tr[data-text]:visible").count() == 1
    page.get_by_role("link", name="half the noise", exact=True).click()
    drawn(page, "overview")
    page.get_by_role("link", name="your own training").or_(page.locator("table.cards th a").first).first.click()
    drawn(page, "scores")
    page.goto((folder / "index.html").as_uri())
    page.get_by_role("link", name=" and ").click()
    drawn(page, "curves")
    is_within(page, 390)
    context.close()
    assert complaints == []
    assert [url for url in asked if not url.startswith((folder.as_uri(), "data:"))] == []


def test_probes_and_one_run_results_are_drawn_as_files(browser, made, tmp_path):
    path = view_store.small_store(made, tmp_path)
    marks = result_store.keep_both(path)
    with Store.open(path, read_only=True) as opened:
        write_bundle(opened, tmp_path / "pages", audits=["the probe", "the canaries"])
    context = browser.new_context(viewport={"width": 390, "height": 800}, color_scheme="dark")
    page = context.new_page()
    page.set_default_timeout(60_000)
    complaints = []
    page.on("console", lambda message: complaints.append(message.text))
    for mark, figures in zip(marks, (4, 2), strict=True):
        page.goto((tmp_path / "pages" / f"result-{mark[:16]}.html").as_uri())
        page.wait_for_function(
            f"document.querySelectorAll('figure[data-drawn=yes] .plot svg').length === {figures}", timeout=60_000
        )
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.get_by_label("logarithmic").check()
    page.wait_for_function("document.querySelector('[data-figure$=tradeoff] svg').textContent.includes('hits')")
    page.get_by_text("All canaries").click()
    assert "450 canaries" in page.inner_text("main")
    page.goto((tmp_path / "pages" / "index.html").as_uri())
    page.get_by_label("Find").fill("probe")
    assert page.locator("tr[data-text]:visible").count() == 1
    assert complaints == []
    context.close()
