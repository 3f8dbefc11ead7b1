"""The config: TOML in, checked values out; every complaint names the key, the value and what is allowed."""

import pytest

from coalmine.auditing import config
from coalmine.auditing.setting import prepare
from coalmine.errors import InvalidInputError

TREE = {
    "data": {"name": "synthetic", "rows": 60},
    "training": {"steps": 4, "sample_rate": 0.5, "noise_multiplier": 1.0},
    "adversary": [{"name": "clipbkd", "copies": 2}],
}


def changed(section, **values):
    return {**TREE, section: {**TREE.get(section, {}), **values}}


def test_defaults_and_options():
    made = config.parse(TREE)
    assert (made.audit.delta, made.audit.confidence, made.audit.seed) == (1e-5, 0.99, 0)
    assert made.adversary[0].options == {"copies": 2}


@pytest.mark.parametrize("name", config.presets())
def test_every_preset_is_valid(name):
    assert config.load(preset=name).adversary


def test_the_default_preset_is_read_without_an_argument():
    assert config.load() == config.load(preset="default")
    ladder = ["api", "crafted-row", "crafted-row-steps", "adaptive-row", "crafted-gradient", "malicious-dataset"]
    assert [one.name for one in config.load().adversary] == ladder
    assert [one.trials for one in config.load().adversary] == [None] * 5 + [100_000]
    assert {one.trials for one in config.load(overrides=["audit.trials=50"]).adversary} == {None}


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        (changed("training", stepz=3), ["training.stepz is not a known key", "did you mean 'steps'?"]),
        ({**TREE, "trianing": {}}, ["trianing is not a known key", "did you mean 'training'?"]),
        ({**TREE, "zzz": {}}, ["zzz is not a known key", "expected one of data, model"]),
        (changed("training", steps="4"), ["training.steps = '4'"]),
        (changed("training", steps=True), ["training.steps = True"]),
        (changed("training", steps=1.5), ["training.steps = 1.5"]),
        (changed("training", steps=0), ["training.steps = 0"]),
        (changed("training", clip=True), ["training.clip = True"]),
        (changed("training", clip="1"), ["training.clip = '1'"]),
        (changed("training", clip=float("nan")), ["training.clip = nan"]),
        (changed("training", clip=float("inf")), ["training.clip = inf"]),
        (changed("training", learning_rate=float("nan")), ["training.learning_rate = nan"]),
        (changed("training", noise_multiplier=-1.0), ["training.noise_multiplier = -1.0"]),
        (changed("training", noise_multiplier=float("nan")), ["training.noise_multiplier = nan"]),
        (changed("training", sample_rate=1.5), ["training.sample_rate = 1.5"]),
        (changed("training", epochs=2.0), ["training:", "one of steps and epochs", "both"]),
        (changed("training", batch_size=3), ["one of sample_rate and batch_size", "both"]),
        (
            changed("training", target_epsilon=3.0),
            ["one of noise_multiplier, target_epsilon and target_belief", "both"],
        ),
        (changed("training", sampling="full"), ["sample_rate has no meaning"]),
        (changed("training", sampling="shuffle"), ["training.sampling = 'shuffle'", "'poisson' or 'full'"]),
        ({**TREE, "training": {}}, ["one of steps and epochs", "neither"]),
        (changed("audit", delta=0.0), ["audit.delta = 0.0"]),
        (changed("audit", delta=float("nan")), ["audit.delta = nan"]),
        (changed("audit", confidence=1.0), ["audit.confidence = 1.0"]),
        (changed("audit", confidence=float("nan")), ["audit.confidence = nan"]),
        (changed("audit", trials=3), ["audit.trials = 3"]),
        (changed("audit", trials=1e3), ["audit.trials = 1000.0"]),
        (changed("audit", claim_epsilon=0.0), ["audit.claim_epsilon = 0.0"]),
        (changed("audit", seed=-1), ["audit.seed = -1"]),
        (changed("model", kind="resnet"), ["model.kind = 'resnet'", "'mlp'"]),
        (changed("model", hidden=[0]), ["model.hidden.0 = 0"]),
        (changed("data", name=3), ["data.name = 3"]),
        ({**TREE, "data": "digits"}, ["data = 'digits'", "expected a table, written [data]"]),
        (changed("model", hidden=3), ["model.hidden = 3", "expected a list"]),
        (changed("model", hidden=[1] * 101), ["model.hidden = [", "a list of at most 100"]),
        ({**TREE, "adversary": []}, ["adversary = []", "expected a list of at least 1"]),
        ({**TREE, "adversary": 3}, ["adversary = 3", "a list of tables, each written [[adversary]]"]),
        ({**TREE, "adversary": [3]}, ["adversary.0 = 3", "a table, written [[adversary]]"]),
        ({**TREE, "adversary": [{"copies": 2}]}, ["adversary.0.name is missing"]),
    ],
)
def test_bad_values_are_named(tree, words):
    with pytest.raises(InvalidInputError) as caught:
        config.parse(tree)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_overrides_replace_single_values_and_the_other_of_a_pair():
    made = config.load(overrides=["training.noise_multiplier=2", "training.batch_size=32", "data.name=synthetic"])
    assert (made.training.noise_multiplier, made.training.target_epsilon) == (2, None)
    assert (made.training.batch_size, made.training.sample_rate) == (32, None)
    assert made.data.name == "synthetic"
    full = config.load(overrides=["training.sampling=full"]).training
    assert (full.sampling, full.sample_rate) == ("full", None)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("clip=2", "section.key=value"),
        ("training.clip", "section.key=value"),
        ("training.=2", "section.key=value"),
        ("training.clip.x=2", "section.key=value"),
        ("adversary.copies=2", "adversaries are set in the file"),
        ("training.klip=2", "did you mean 'clip'?"),
        ("trainin.clip=2", "did you mean 'training'?"),
        ("training.clip=[1]", "training.clip = [1]"),
        ("training.clip=__import__('os')", "training.clip = \"__import__('os')\""),
    ],
)
def test_bad_overrides(override, words):
    with pytest.raises(InvalidInputError) as caught:
        config.load(overrides=[override])
    assert words in str(caught.value)


@pytest.mark.parametrize("trials", ["x", 3, 1.5, True])
def test_trials_that_another_number_replaces_are_still_checked(tmp_path, trials):
    path = tmp_path / "audit.toml"
    value = f'"{trials}"' if isinstance(trials, str) else str(trials).lower()
    path.write_text(f'[[adversary]]\nname = "clipbkd"\ntrials = {value}\n', encoding="utf-8")
    with pytest.raises(InvalidInputError, match=r"adversary\.0\.trials = "):
        config.load(path, overrides=["audit.trials=8"])
    path.write_text('[[adversary]]\nname = "clipbkd"\ntrials = 6\n', encoding="utf-8")
    assert config.load(path, overrides=["audit.trials=8"]).adversary[0].trials is None


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path):
    path = tmp_path / "audit.toml"
    path.write_bytes(b"\xef\xbb\xbf[audit]\ntrials = 20\n")
    assert config.load(path).audit.trials == 20


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"classes": [3, 8], "rows_per_class": 148}, r"data\.rows_per_class = 148 .* at most 140, .* class 8"),
        ({"rows_per_class": 2, "rows": 21}, r"data\.rows = 21 .* at most 20"),
    ],
)
def test_more_rows_than_there_are_is_said_in_the_configs_words(section, words):
    made = config.parse({**TREE, "data": {"name": "digits", **section}})
    with pytest.raises(InvalidInputError, match=words):
        prepare(made)


def test_unknown_presets_and_two_sources(tmp_path):
    with pytest.raises(InvalidInputError, match="did you mean 'jagielski-2020'"):
        config.load(preset="jagielsky-2020")
    with pytest.raises(InvalidInputError, match="not allowed beside a file"):
        config.load(tmp_path / "a.toml", preset="default")


def test_files_that_are_not_configs(tmp_path):
    bad = tmp_path / "bad.toml"
    bad.write_text("[data\nname = 3")
    with pytest.raises(InvalidInputError, match="is not TOML"):
        config.load(bad)
    bad.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidInputError, match="is not TOML"):
        config.load(bad)
    with pytest.raises(InvalidInputError, match="cannot be read"):
        config.load(tmp_path)
    with pytest.raises(InvalidInputError, match="cannot be read"):
        config.load(tmp_path / "missing.toml")


def test_rates_and_steps():
    training = config.parse(changed("training", steps=None, epochs=24.0, sample_rate=None, batch_size=250)).training
    assert training.rate(6000) == 250 / 6000
    assert training.step_count(6000) == 576
    with pytest.raises(InvalidInputError, match=r"training.batch_size = 250.*at most the number of rows, 100"):
        training.rate(100)
    assert config.parse(changed("training", steps=None, epochs=0.01)).training.step_count(60) == 1
    whole = config.parse({**TREE, "training": {"epochs": 3.5, "sampling": "full", "noise_multiplier": 1.0}}).training
    assert (whole.rate(60), whole.step_count(60)) == (1.0, 4)


def test_execution():
    assert config.Execution(workers=3).worker_count == 3
    assert config.Execution(device="cuda", workers=3).worker_count == 1
    assert config.Execution().worker_count >= 1
    with pytest.raises(InvalidInputError, match="device = 'tpu'"):
        config.Execution(device="tpu")
    with pytest.raises(InvalidInputError, match="workers = -1"):
        config.Execution(workers=-1)
    assert config.Execution(device="cuda:0,cuda:3").devices == ("cuda:0", "cuda:3")
    for wrong in ("cuda:", "cuda:0,cpu", "cuda:-1", "", "cuda:0, cuda:1"):
        with pytest.raises(InvalidInputError, match="device = "):
            config.Execution(device=wrong)
    with pytest.raises(InvalidInputError, match="gpus has no meaning without a cluster"):
        config.Execution(gpus=1.0)
    with pytest.raises(InvalidInputError, match="one kind of device with engine = 'ray'"):
        config.Execution(device="cuda:0,cuda:1", engine="ray")
    with pytest.raises(InvalidInputError, match="engine = 'dask'"):
        config.Execution(engine="dask")
