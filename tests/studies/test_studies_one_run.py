"""The studies of one run: ideal scores beside the published numbers, several canaries to a parameter, real audits."""

import dataclasses

import numpy as np
import pytest
import torch

from coalmine.errors import DataError, InvalidInputError
from coalmine.studies import Cell, Scale, Study, find, measures, names, run_cell
from coalmine.studies.measures import scenes
from coalmine.training import parameter_count, takes_tokens


def test_every_study_of_one_run_is_there():
    papers = ("mahloujifar-2025", "keinan-2025", "boglioni-2026", "panda-2025")
    assert sum(name.startswith(papers) for name in names()) == 4


def test_ideal_canaries_prove_what_the_plan_says(bench):
    study = find("mahloujifar-2025/idealised")
    found = run_cell(study, cell=study.cell("noise=1,canaries=1000"), scale=study.scale("quick"), bench=bench)
    assert found.columns["ε"] == pytest.approx(4.377, abs=0.001)
    assert found.ours == pytest.approx(2.56, abs=0.02)
    assert found.columns["(ε, δ), p-value"] < found.ours < found.guarantee
    assert {cell.published for cell in study.cells if cell.values["canaries"] == 100000} == {8.16, 3.61, 1.59, None}


def test_several_canaries_to_a_parameter(bench):
    study = find("keinan-2025/several-to-a-coordinate")
    few = dataclasses.replace(study.scale("quick"), options={"audits": 3})
    found = run_cell(study, cell=study.cell("per parameter=1"), scale=few, bench=bench)
    assert found.trials == 3000
    assert 0.2 < found.ours < found.columns["one run dpsgd"] < found.guarantee == pytest.approx(2.0, abs=1e-3)


def tiny(adversary, **tree):
    study = Study(
        name="test/tiny",
        title="t",
        citation="c",
        quantity="ε",
        measure="one-run",
        notes=(),
        cells=(),
        scales={},
    )
    training = {"steps": 10, "sample_rate": 0.2, "target_epsilon": 8.0}
    tree = {
        "training": training,
        "audit": {"delta": 1e-5, "confidence": 0.95, "control": False},
        "adversary": [adversary],
        **tree,
    }
    return study, Cell(name="a", tree=tree, published=None)


def test_a_real_audit_of_one_run(bench):
    study, cell = tiny({"name": "one-run-white-box", "canaries": 200}, data={"name": "digits", "rows": 300})
    scale = Scale(tolerance=1.0)
    (settings,) = measures.find("one-run").audits(study, cell, scale)
    assert settings.adversary[0].options == {"canaries": 200}
    found = run_cell(study, cell=cell, scale=scale, bench=bench)
    assert found.trials == 200
    assert 0.0 <= found.columns["proved"] <= found.ours < found.guarantee
    assert found.columns["share"] == pytest.approx(found.ours / found.guarantee)
    assert found.columns["accuracy with"] == pytest.approx(found.columns["accuracy without"], abs=0.3)
    other, wrong = tiny({"name": "clipbkd"}, data={"name": "digits", "rows": 300})
    with pytest.raises(InvalidInputError, match="expected one run"):
        run_cell(other, cell=wrong, scale=scale, bench=bench)


def test_a_small_language_model(bench, monkeypatch):
    arrays, network = scenes.text(None)
    x, y, x_test, _ = arrays
    assert (x.shape, y.shape, x_test.shape) == ((4000, 16), (4000,), (2000, 16))
    assert takes_tokens(network)
    assert parameter_count(network) == 12176
    assert np.array_equal(scenes.text(None)[0][0], x)
    body = scenes.Transformer()
    rows = torch.from_numpy(x[:3])
    assert torch.allclose(body(rows)[1:], body(rows[1:]), atol=1e-5)  # no row sees another
    monkeypatch.setitem(scenes.SCENES, "text", lambda _: ((x[:200], y[:200], x_test[:50], y[:50]), network))
    study, cell = tiny(
        {"name": "one-run-black-box", "kind": "random_tokens", "canaries": 20, "references": 1}, scene="text"
    )
    assert measures.find("one-run").audits(study, cell, Scale(tolerance=1.0)) == ()
    found = run_cell(study, cell=cell, scale=Scale(tolerance=1.0), bench=bench)
    assert found.trials == 20


def test_a_small_convolutional_network():
    try:
        (x, y, _, y_test), network = scenes.fashion_mnist_cnn(None)
    except DataError as error:
        pytest.skip(f"needs Fashion-MNIST: {error}")
    assert (x.shape, y.size, y_test.size) == ((6000, 784), 6000, 2000)
    assert parameter_count(network) == 5178


def test_pictures_through_fixed_filters():
    pictures = np.random.default_rng(0).random((5, 3072))
    rows = scenes.filtered(pictures)
    assert np.linalg.norm(rows, axis=1) == pytest.approx(4.0, rel=1e-5)
    assert scenes.filtered(pictures[2:3]) == pytest.approx(rows[2:3], abs=1e-5)  # no row sees another
    assert set(scenes.SCENES) == {"cifar10-features", "fashion-mnist-cnn", "text"}
