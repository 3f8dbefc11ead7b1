"""``coalmine probe``: exit codes, one JSON object, and words for wrong input."""

import pytest
from cli_runner import assert_refused, run

STEPS = """
import torch
import coalmine


def make(noise):
    weight = torch.zeros(3)

    def step(rows):
        clipped = rows / rows.norm(dim=1, keepdim=True).clamp(min=1.0)
        weight.sub_((clipped.sum(dim=0) + noise * torch.randn(3)) / 8)

    return coalmine.PrivateStep(
        step=step, state={"weight": weight}, batch=torch.eye(3), clip_norm=1.0, noise_multiplier=2.0, divisor=8,
        learning_rate=1.0,
    )


def right():
    return make(2.0)


def half():
    return make(1.0)


def nothing():
    return 5
"""


@pytest.fixture(autouse=True)
def steps(tmp_path, monkeypatch):
    (tmp_path / "probed_steps.py").write_text(STEPS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


def test_a_right_step_ends_with_zero_and_half_the_noise_with_one(capsys):
    assert run(capsys, "probe probed_steps:right").code == 0
    found = run(capsys, "probe probed_steps:half --json")
    assert found.code == 1
    faults = [one["fault"] for part in found.json["measurements"] for one in part["findings"]]
    assert faults == ["noise too small"]


def test_the_report_is_written(capsys, tmp_path):
    found = run(capsys, f"probe probed_steps:half --replays 60 --report {tmp_path / 'page.html'}")
    assert found.code == 1
    assert "Refuted: noise too small" in (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("probed_steps:nothing", "expected a coalmine.PrivateStep"),
        ("probed_steps:missing", "has no missing"),
        ("probed_steps:right --sample-rate 0.1", "--loader"),
        ("probed_steps:right --level 2", "--level"),
    ],
)
def test_wrong_input_ends_with_two(capsys, line, words):
    assert_refused(run(capsys, f"probe {line}"), words)
