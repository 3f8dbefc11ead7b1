"""The page and the figures from small synthetic records: complete, self-contained, escaped, small."""

import dataclasses
import html
import html.parser
import importlib.util
import math
import re
import shlex
import subprocess
import sys
import tomllib

import pytest
import report_sample as sample

from coalmine import report
from coalmine.auditing import config
from coalmine.errors import InvalidInputError, UnsupportedError
from coalmine.records import Outcome, Relation
from coalmine.report import figures, render, repeat, rounding, tables

NASTY = "<script>alert('x')</script> & \"quoted\""


@pytest.fixture(scope="module")
def page():
    return report.page(sample.standard_result())


class Elements(html.parser.HTMLParser):
    """Every element with its attributes, and the text outside of elements of style."""

    def __init__(self, text):
        super().__init__()
        self.found, self.text, self.open = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        self.open.append(tag)

    def handle_endtag(self, tag):
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data):
        if "style" not in self.open:
            self.text.append(data)


def test_the_page_has_all_its_parts_in_order(page):
    text = " ".join(" ".join(Elements(page).text).replace("\u00a0", " ").split())
    parts = [
        "Consistent: nothing here contradicts the guarantee ε ≤ 2.89",
        "Your data",
        "A data set that the attacker chose",
        "Could this audit have failed?",
        "Yes. A training with half of this noise would have been refuted with probability 0.97.",
        "Versions coalmine 0.1.0",
        "Run it again",
        "For a person",
        "What this means for a person",
        "The attack clipbkd (copies=4)",  # the strongest first
        "The attack membership",
        "Every number, and what it rests on",
        "What theory says",
        "Notes: what the numbers assume",
        "How to repeat it",
        "coalmine audit audit.toml",
        sample.standard_result().adversaries[1].run,
    ]
    places = [text.index(part) for part in parts]
    assert places == sorted(places)


def test_nothing_on_the_page_comes_from_elsewhere(page):
    elements = Elements(page)
    tags = {tag for tag, _ in elements.found}
    assert not tags & {"script", "iframe", "object", "embed", "img", "audio", "video", "form", "base"}
    for _, attributes in elements.found:
        for name, value in attributes.items():
            assert not name.startswith("on")
            if name in ("src", "href", "xlink:href", "action", "poster", "srcset"):
                assert value.startswith(("#", "data:")), (name, value)
    assert not re.search(r"https?://", page)
    assert not re.search(r"url\((?!#)|@import", page)
    assert "default-src 'none'" in page


def test_the_page_is_small(page):
    assert len(page.encode()) < 3_000_000


def test_ids_are_not_shared_between_figures(page):
    ids = [attributes["id"] for _, attributes in Elements(page).found if attributes.get("id")]
    assert len(ids) == len(set(ids))
    assert set(re.findall(r"url\(#([^)]+)\)", page)) <= set(ids)


def test_the_same_result_gives_the_same_page_as_a_string_and_in_a_file(page, tmp_path):
    path = tmp_path / "x.html"
    assert sample.standard_result().to_html(path) == page == path.read_text("utf-8")


def test_every_figure_has_words_for_those_who_cannot_see_it_and_each_kind_one_caption(page):
    found = Elements(page).found
    assert sum(tag == "figure" for tag, _ in found) == 2 + 2 * 3
    captions = re.findall("<figcaption>(.*?)</figcaption>", page)
    assert len(captions) == 2 + 3  # the overview, the gap, and each kind once
    assert len(captions) == len(set(captions))
    labels = [attributes["aria-label"] for _, attributes in found if attributes.get("role") == "img"]
    assert len(labels) == 2 * 2 + 2 * 3  # the overview and the gap come in two widths
    assert all(len(label) > 40 for label in labels)


def test_assumptions_are_numbered_notes_that_stand_once(page):
    elements = Elements(page)
    notes = [attributes["id"] for tag, attributes in elements.found if tag == "li" and attributes.get("id")]
    targets = [attributes["href"] for tag, attributes in elements.found if tag == "a"]
    assert notes == [f"note-{n}" for n in range(1, len(notes) + 1)]
    assert {f"#{note}" for note in notes} <= set(targets)
    ids = {attributes["id"] for _, attributes in elements.found if attributes.get("id")}
    assert {target.removeprefix("#") for target in targets} <= ids
    result = sample.standard_result()
    told = {note for one in result.adversaries for found in (one.bound, *one.others) for note in found.assumptions}
    assert len(notes) == len(told | {*result.guarantee.assumptions, *result.heuristic.assumptions})
    shown = re.findall(r'<li id="note-\d+">(.*?)</li>', page.replace("\u00a0", " "))
    assert told <= {html.unescape(note) for note in shown}


def test_everything_is_escaped():
    one = sample.adversary(NASTY, options={"<i>": "</style>"}, trials=40)
    one = dataclasses.replace(one, notes=(f"note {NASTY}",))
    result = sample.result(one, note=f"data {NASTY}", trials=40)
    result = dataclasses.replace(result, versions={NASTY: NASTY})
    elements = Elements(report.page(result))
    assert not {"script", "i"} & {tag for tag, _ in elements.found}
    text = " ".join(elements.text)
    assert f"note {NASTY}" in text
    assert f"data {NASTY}" in text
    assert text.count("<script>") >= 4


def test_the_config_on_the_page_is_the_config(page):
    shown = html.unescape(page.split('<pre class="config">')[1].split("</pre>")[0])
    assert config.parse(tomllib.loads(shown)) == sample.standard_result().config


def test_what_came_from_python_is_not_passed_off_as_a_config():
    result = sample.result(sample.adversary(trials=40), trials=40)
    given = dataclasses.replace(result, subject=dataclasses.replace(result.subject, given=("data", "model")))
    text = report.page(given)
    assert "Call coalmine.audit with the same data, model and this config" in text
    assert "coalmine audit audit.toml" not in text


def test_the_command_on_the_page_gives_the_very_config(page):
    """Read back by the command line's own parts, the command is the config of the audit."""
    for settings in (
        config.load(),
        config.load(overrides=["audit.trials=200"]),
        config.load(preset="jagielski-2020", overrides=["audit.seed=7"]),
        config.load(
            adversaries=["clipbkd:copies=4", "api"], overrides=["training.noise_multiplier=2", "data.rows=100"]
        ),
        config.load(overrides=["model.hidden=[16,8]", "training.steps=7", "audit.claim_epsilon=0.5"]),
    ):
        shown = repeat.command(dataclasses.replace(sample.standard_result(), config=settings))
        program, name, *options = shlex.split(shown)
        assert (program, name) == ("coalmine", "audit")
        given = {}
        for option, value in zip(options[::2], options[1::2], strict=True):
            given.setdefault(option, []).append(value)
        overrides = given.pop("--set", [])
        overrides += [f"audit.trials={value}" for value in given.pop("--trials", [])]
        overrides += [f"audit.claim_epsilon={value}" for value in given.pop("--claim-epsilon", [])]
        [preset] = given.pop("--preset", [None])
        read = config.load(preset=preset, overrides=overrides, adversaries=given.pop("--adversary", None))
        assert (read, given) == (settings, {})


def test_what_cannot_be_said_in_a_command_is_a_file():
    result = sample.result(*(sample.adversary(f"attack-{n}-{'x' * 60}", trials=20) for n in range(6)), trials=20)
    assert repeat.command(result) is None
    first, second = repeat.steps(result)
    assert first["text"] == "Save this as audit.toml:"
    assert config.parse(tomllib.loads(first["code"])) == result.config
    assert second["code"] == "coalmine audit audit.toml --report report.html"


def test_a_result_shows_itself():
    result = sample.standard_result()
    assert repr(result) == (
        "<AuditResult: consistent; ε ≥ 0.37 (clipbkd (copies=4)), ε ≤ 2.89 promised at δ = 10⁻⁵; 240 trials of 2 "
        "attacks>"
    )
    shown = result._repr_html_()
    assert "Consistent: nothing here contradicts the guarantee" in shown
    assert "refuted with probability 0.97" in shown
    assert shown.index("clipbkd") < shown.index("membership")
    nasty = sample.result(sample.adversary(NASTY, trials=20), trials=20)._repr_html_()
    assert "<script>" not in nasty
    frame = pytest.importorskip("pandas", reason="pandas is not installed") and result.to_frame()
    assert frame[frame.headline].epsilon.tolist() == [one.bound.epsilon for one in result.adversaries]


def test_where_nothing_is_proved_no_threshold_is_drawn():
    def rules(one):
        return [layer for layer in figures.histograms(one).chart.to_dict()["layer"] if layer["mark"]["type"] == "rule"]

    weak, strong = sample.adversary(mu=0.0), sample.adversary(mu=3.0)
    assert (weak.bound.epsilon, len(rules(weak)), len(rules(strong))) == (0.0, 0, 1)
    result = sample.result(weak)
    points = [layer["mark"].get("shape") for layer in figures.trade_off(result, weak).chart.to_dict()["layer"]]
    assert "diamond" not in points
    assert "clipbkd: nothing proved" in report.page(result)


def test_what_lies_beyond_the_axis_stands_at_its_edge_with_its_value():
    one = sample.adversary(trials=40)
    far = dataclasses.replace(one, bound=dataclasses.replace(one.bound, ceiling=1234.567))
    text = report.page(sample.result(far, trials=40))
    assert "1,234.56 ▸" in text
    loose = sample.result(one, trials=40)
    loose = dataclasses.replace(
        loose, subject=dataclasses.replace(loose.subject, heuristic=None, guarantee=dataclasses.replace(
            loose.guarantee, epsilon=3600.0))
    )  # fmt: skip
    assert "3,600.00 ▸" in report.page(loose)


def test_stand_in_data_is_labelled():
    text = report.page(
        sample.result(sample.adversary(trials=40), note="A stand-in, not the published data.", trials=40)
    )
    assert "About the data: A stand-in, not the published data." in text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"claim": 0.2}, "Refuted at 99% confidence: the claim ε = 0.2 is false"),
        ({"claim": 0.2}, "is claimed: what is known about the privacy loss ε"),
        ({"claim": 0.2}, "Claim: ε ≤ 0.20"),
        ({"noise": 4.0}, "Refuted at 99% confidence: the guarantee ε ≤"),
        ({"noise": 4.0}, "although no more than"),
        ({"noise": 0.0}, "Inconclusive: without noise nothing is promised, so there is no claim to refute."),
        ({"outcome": Outcome.INCONCLUSIVE}, "Inconclusive: this audit says nothing about the guarantee"),
        ({"claim": 0.2}, "What to check next"),
        ({"claim": 0.2}, "is guaranteed for this training, ε = 0.2 was claimed"),
        ({"noise": 4.0}, "coalmine probe takes one step of the training apart"),
        ({"missing": 1}, "1 further adversaries of this audit have no trials yet"),
    ],
)
def test_other_outcomes(options, said):
    result = sample.result(sample.adversary(mu=4.0), **options)
    text = report.page(result).replace("\u00a0", " ")
    assert said in text
    assert f'<h1 class="{result.verdict}">' in text
    assert f"<title>Privacy audit: {result.verdict}</title>" in text


def test_a_heuristic_or_an_estimate_is_never_printed_as_a_bound(page):
    text = " ".join(Elements(page).text).replace("\u00a0", " ")
    result = sample.standard_result()
    guess = f"{result.heuristic.epsilon:.2f}"
    assert f"ε ≈ {guess}" in text
    assert f"≥ {guess}" not in text
    assert f"≤ {guess}" not in text
    assert "estimate: proves nothing" in text


def test_every_figure_says_what_it_shows():
    for figure in figures.all_figures(sample.standard_result()):
        spec = figure.chart.to_dict()
        assert " ".join(spec["title"]["text"]) == figure.title
        assert len(figure.title.split()) > 6
        assert len(figure.caption) > 80
        svg = render.svg(figure)
        assert "(no unit" in svg or "(%)" in svg or "(share" in svg
        assert not re.search(r'(href|src)="http', svg)


def test_figures_in_three_formats(tmp_path):
    result = sample.result(sample.adversary(trials=40), trials=40)
    paths = report.write_figures(result, tmp_path / "new" / "folder")
    assert {path.name for path in paths} == {
        f"{name}.{kind}"
        for name in ("overview", "scores-clipbkd", "tradeoff-clipbkd", "growth-clipbkd")
        for kind in ("svg", "png", "pdf")
    }
    starts = {".svg": b"<svg", ".png": b"\x89PNG", ".pdf": b"%PDF"}
    assert all(path.read_bytes().startswith(starts[path.suffix]) for path in paths)


def test_plot_gives_charts_by_name():
    result = sample.standard_result()
    for what in report.CHARTS:
        if what != "beliefs":  # these adversaries have none
            assert result.plot(what).to_dict()["$schema"]
    with pytest.raises(UnsupportedError, match="only identifiability has beliefs"):
        result.plot("beliefs")
    first = result.plot("scores", adversary=0).to_dict()
    assert "membership" in " ".join(first["title"]["text"])
    with pytest.raises(InvalidInputError, match="what = 'pie'"):
        result.plot("pie")
    with pytest.raises(InvalidInputError, match="adversary = 2"):
        result.plot("scores", adversary=2)


def test_replaced_rows_are_explained():
    one = sample.adversary(relation=Relation.REPLACE, trials=40)
    assert "differ in one row replaced; ε is stated for one row added or removed" in report.page(
        sample.result(one, trials=40)
    )


@pytest.mark.parametrize(
    ("place", "said"),
    [("", "this is a folder"), ("none/x.html", "a folder that is there"), ("x" * 300, "cannot be written")],
)
def test_a_place_that_cannot_be_written(tmp_path, place, said):
    with pytest.raises(InvalidInputError, match=said):
        sample.standard_result().to_html(tmp_path / place)
    assert list(tmp_path.iterdir()) == []


def test_without_the_packages_the_error_names_the_extra(monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "altair" else real(name))
    with pytest.raises(UnsupportedError, match=r"needs altair: .*coalmine\[report\]"):
        report.page(sample.standard_result())


def test_the_results_and_the_words_load_no_drawing_and_no_training():
    code = (
        "import sys, coalmine.auditing.results, coalmine.report, coalmine.report.one_person, coalmine.report.tables;"
        "print([name for name in ('altair', 'vl_convert', 'jinja2', 'torch') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_the_ladder_says_what_each_power_was_worth():
    weak, strong = sample.adversary("weak", mu=0.5), sample.adversary("strong", mu=2.0)
    shown = sample.result(weak, strong, sample.adversary("none", mu=0.0))
    table = tables.ladder(shown)
    assert [one["adversary"] for one in table.records] == ["weak", "strong", "none"]
    first, second, third = table.records
    assert second["worth"] == pytest.approx(strong.bound.epsilon - weak.bound.epsilon)
    assert first["worth"] == weak.bound.epsilon
    assert third["worth"] == third["worth_assumed"] == 0.0
    page = report.page(shown)
    assert "How much each extra capability helps an attacker" in page
    assert f"(+{rounding.down(second['worth'])})" in page
    assert tables.ladder(sample.result(weak)) is None


def test_the_axis_of_certainty_is_rounded_to_the_nearest():
    """It stands over bounds of both directions: rounded up it would flatter what is proved (62.246% at ε = 0.5)."""
    from coalmine.report import render

    picture = render.svg(figures.overview(sample.result(claim=1.0)))
    labels = [float(one) for one in re.findall(r">(\d\d\.\d)%<", picture)]
    exact = [100 / (1 + math.exp(-float(one))) for one in re.findall(r">(\d\.\d)<", picture)]
    assert len(labels) > 3
    assert all(min(abs(one - label) for one in exact) < 0.0501 for label in labels)
