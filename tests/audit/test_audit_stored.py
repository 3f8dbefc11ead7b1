"""Results from the store alone: nothing loaded, nothing crafted, the same bit for bit; and which trials are shared."""

import contextlib
import dataclasses
import hashlib
import json
import sqlite3
import sys

import numpy as np
import pytest
import torch

from coalmine import adversaries, data
from coalmine.adversaries.clipbkd import ClipBkd
from coalmine.auditing import setting
from coalmine.auditing.run import Game, game_of
from coalmine.auditing.setting import network_identity, prepare
from coalmine.auditing.stored import record_of, stored_result
from coalmine.cli import main
from coalmine.errors import InvalidInputError, StoreError
from coalmine.records import EpsilonClaim, MechanismClaim, Outcome
from coalmine.store import Store
from coalmine.store.listing import audits
from coalmine.training import FromModule

TWO = ({"name": "clipbkd", "copies": 2}, {"name": "identifiability"})
FULL = {"sampling": "full", "sample_rate": None, "noise_multiplier": 2.0, "learning_rate": 1.0, "initialization": 0.0}


@pytest.fixture
def sealed(monkeypatch):
    """From now on nothing may be loaded, crafted or trained."""

    def seal():
        def refuse(*_, **__):
            raise AssertionError("a stored result must not need this")

        setting._load.cache_clear()
        monkeypatch.setattr(data, "load", refuse)
        monkeypatch.setattr(Game, "of", refuse)
        for kind in (one.kind for one in adversaries.catalogue().values()):
            monkeypatch.setattr(kind, "craft", refuse)
        monkeypatch.setattr("coalmine.game.built_in.train", refuse)

    return seal


@pytest.mark.parametrize(
    "change",
    [
        {"adversaries": TWO, "training": FULL},
        {"adversaries": TWO, "training": FULL, "audit": {"claim_epsilon": 0.5, "trials": 32}},
        {"training": {"noise_multiplier": 0.0}},
        {"training": {**FULL, "noise_scale": "local"}, "adversaries": TWO[1:]},
        {"adversaries": ({"name": "malicious-dataset"},), "audit": {"trials": 320}},
        {"adversaries": ({"name": "clipbkd"},), "audit": {"control": True}},
    ],
    ids=["two", "claim", "no noise", "local noise", "shortcut", "control"],
)
def test_a_stored_result_is_the_result_of_the_audit_bit_for_bit(settings, play, tmp_path, sealed, change):
    told = play(settings(**change))
    sealed()
    with Store.open(tmp_path / "a.db") as store:
        for one in told.adversaries:
            again = stored_result(store, one.run[:16])
            assert again.to_json() == told.to_json()
            assert again.in_words() == told.in_words()
            assert again.claim == told.claim
            assert again.subject == told.subject
            for mine, other in zip(told.adversaries, again.adversaries, strict=True):
                assert mine.attack == other.attack
                np.testing.assert_array_equal(mine.scores.world1, other.scores.world1)


def test_another_claim_on_the_same_trials_does_not_change_the_first_ones_verdict(settings, play, tmp_path, trained):
    """As when a second process asks something else of the same store."""
    strong = {"training": {**FULL, "noise_multiplier": 0.1}, "adversaries": ({"name": "clipbkd"},)}
    first = play(settings(**strong, audit={"claim_epsilon": 0.1}))
    trained.clear()
    second = play(settings(**strong, audit={"claim_epsilon": 50.0}))
    third = play(settings(**strong))
    assert trained == []
    assert [one.verdict.outcome for one in (first, second, third)] == [
        Outcome.REFUTED,
        Outcome.INCONCLUSIVE,
        Outcome.INCONCLUSIVE,
    ]
    with Store.open(tmp_path / "a.db") as store:
        names = [one.fingerprint for one in audits(store)]
        stored = [stored_result(store, name) for name in names]
        assert [one.to_json() for one in stored] == [one.to_json() for one in (third, second, first)]
        assert record_of(store, names[2]).claim == EpsilonClaim(epsilon=0.1, delta=1e-5)
        assert isinstance(record_of(store, names[0]).claim, MechanismClaim)
        # The run alone stands for the last audit that used it, and reading changes nothing.
        assert stored_result(store, first.adversaries[0].run).to_json() == third.to_json()
        assert [one.fingerprint for one in audits(store)] == names


def test_an_audit_that_is_under_way_is_read_as_far_as_it_is(settings, play, tmp_path):
    """Of 64 trials 32 are lost, and all of the second adversary: what is left is told, and how much is missing."""
    import sqlite3

    whole = play(settings(adversaries=TWO, training=FULL))
    with sqlite3.connect(tmp_path / "a.db") as database:
        database.execute("DELETE FROM block WHERE block >= 2 OR run = 2")
    with Store.open(tmp_path / "a.db") as store:
        part = stored_result(store, whole.adversaries[0].run)
    assert part.missing == 1
    assert [(one.wanted, sum(one.bound.trials)) for one in part.adversaries] == [(64, 32)]
    np.testing.assert_array_equal(part.adversaries[0].scores.world0, whole.adversaries[0].scores.world0[:16])


# ---- which trials are shared ---------------------------------------------------------------------------------------


def run_of(made, **options):
    return game_of(prepare(made, **options), made.adversary[0], trials=64).run


def test_an_option_at_its_default_is_the_option_not_given(settings, play, trained):
    said = settings(adversaries=({"name": "clipbkd", "copies": 1, "world0": "clean"},))
    first = play(settings(adversaries=({"name": "clipbkd"},)))
    trained.clear()
    second = play(said)
    assert trained == []
    assert first.adversaries[0].run == second.adversaries[0].run
    assert (first.adversaries[0].label, second.adversaries[0].label) == ("clipbkd", "clipbkd (copies=1, world0=clean)")
    object_given = play(settings(), adversaries=[ClipBkd()])
    assert object_given.adversaries[0].run == first.adversaries[0].run


def test_a_changed_default_does_not_reuse_old_trials(settings, monkeypatch):
    """The next version plants three copies where nothing is said: the same config is then another attack."""
    made = settings(adversaries=({"name": "clipbkd"},))
    before = run_of(made)

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class NextClipBkd(ClipBkd):
        copies: int = 3

    NextClipBkd.__module__ = ClipBkd.__module__
    monkeypatch.setattr(sys.modules["coalmine.adversaries.catalogue"], "_OWN", {"clipbkd": NextClipBkd})
    assert run_of(made) != before


def test_a_network_is_known_by_its_values_not_by_what_was_said(settings):
    said = settings(model={"kind": "mlp", "hidden": [32], "activation": "relu"})
    assert run_of(said) == run_of(settings(model={"kind": "mlp"}))
    assert run_of(said) != run_of(settings(model={"kind": "mlp", "activation": "tanh"}))


# ---- what comes from Python ----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mine(ClipBkd):
    """An adversary of the user's own."""

    copies: int = 2


def given(seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(40, 6)), rng.integers(0, 2, size=40)


def test_data_a_model_and_adversaries_from_python(settings, play, tmp_path, sealed):
    body = torch.nn.Sequential(torch.nn.Linear(6, 2))
    told = play(settings(), data=given(), model=body, adversaries=["clipbkd", Mine(copies=3)])
    assert [(one.name, one.copies) for one in told.adversaries] == [("clipbkd", 1), ("Mine", 3)]
    assert told.subject.given == ("data", "model", "adversaries")
    assert (told.subject.details["rows"], told.subject.details["parameters"], told.missing) == (40, 14, 0)
    sealed()
    with Store.open(tmp_path / "a.db") as store:
        assert stored_result(store, told.adversaries[1].run).to_json() == told.to_json()


def test_other_data_another_model_or_another_adversary_is_another_run(settings, monkeypatch):
    made = settings()

    def name(seed=0, model=None, who=None):
        return game_of(prepare(made, data=given(seed), model=model), who or made.adversary[0], trials=64).run

    torch.manual_seed(0)
    frozen = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Linear(4, 2))
    frozen[0].requires_grad_(False)
    first = name(model=frozen)
    assert name() == name() != name(seed=1)
    assert first != name()
    assert name(model=frozen) == first
    with torch.no_grad():
        frozen[0].weight += 1.0
    assert name(model=frozen) != first
    assert name(who=Mine()) != name(who=ClipBkd(copies=2))


def test_a_module_of_the_users_own_is_known_by_its_text(monkeypatch):
    class Twice(torch.nn.Linear):
        def forward(self, x):
            return 2.0 * super().forward(x)

    network = FromModule(Twice(6, 2), input_shape=(6,), classes=2)
    before = network_identity(network)
    monkeypatch.setattr("coalmine.training.identity.inspect.getsource", lambda module: "another text")
    assert network_identity(network) != before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"data": (np.zeros((3, 2)),)}, "expected arrays"),
        ({"data": (np.zeros((3, 2)), np.zeros(4))}, r"data has x and y of shapes \(3, 2\) and \(4,\)"),
        ({"data": (np.zeros((3, 2)), np.array([0.5, 0.0, 1.0]))}, "expected a class label, a whole number from 0"),
        ({"data": (np.zeros((3, 2)), ["a", "b", "c"])}, "y of data is not allowed: expected an array of numbers"),
        ({"model": "mlp"}, "model = 'mlp' is not allowed"),
        ({"adversaries": ["clipbdk"]}, "did you mean 'clipbkd'"),
        ({"adversaries": [3]}, "adversary = 3 is not allowed"),
        ({"adversaries": [ClipBkd]}, "expected a name, or an instance of a dataclass"),
    ],
)
def test_bad_objects_are_named(settings, play, options, words):
    with pytest.raises(InvalidInputError, match=words):
        play(settings(), **options)


def _without(*path):
    def edit(tree):
        for key in path[:-1]:
            tree = tree[key]
        del tree[path[-1]]

    return edit


def _changed(*path, value):
    def edit(tree):
        for key in path[:-1]:
            tree = tree[key]
        tree[path[-1]] = value

    return edit


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (_changed("config", "audit", "confidence", value=float("nan")), "Out of range float"),
        (_changed("config", "training", "clip", value=False), "training.clip = False"),
        (_changed("config", "blessed", value=True), "blessed is not a known key"),
        (_changed("members", 0, "wanted", value="many"), "trials = 'many'"),
        (_changed("members", 0, "run", value=5), "run = 5"),
        (_changed("members", 0, "attack", "copies", value=-1), "copies = -1"),
        (_changed("subject", value=[]), "TypeError"),
        (_changed("claim", "kind", value="none"), "damaged or changed"),
        (_without("members"), "'members'"),
        (_without("versions"), "'versions'"),
        (_without("members", 0, "attack", "view"), "'view'"),
    ],
)
def test_a_description_that_no_audit_has_is_refused_by_its_name(settings, play, tmp_path, edit, words):
    """Edited by hand, and named again by its own hash: an error of the store, with what is wrong, and no traceback."""
    name = play(settings(adversaries=({"name": "malicious-dataset"},))).audit
    with contextlib.closing(sqlite3.connect(tmp_path / "a.db")) as database:
        tree = json.loads(database.execute("select description from audit").fetchone()[0])
        edit(tree)
        known = {key: value for key, value in tree.items() if key != "versions"}
        text = json.dumps(known, sort_keys=True, separators=(",", ":"))
        name = hashlib.sha256(text.encode()).hexdigest()
        database.execute("update audit set description = ?, fingerprint = ?", (json.dumps(tree), name))
        database.commit()
    with Store.open(tmp_path / "a.db") as store, pytest.raises(StoreError, match="damaged or changed") as caught:
        stored_result(store, name)
    assert words in str(caught.value)
    assert main(["report", name[:12], "--store", str(tmp_path / "a.db"), "-o", str(tmp_path / "r.html")]) == 2
