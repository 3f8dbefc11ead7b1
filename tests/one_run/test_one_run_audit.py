"""Many canaries in one training as adversaries of an audit: played, stored, pooled, judged by the one judge, shown."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import coalmine  # noqa: E402
from coalmine.adversaries import Scene, adversary, identity_of, resolve  # noqa: E402
from coalmine.auditing.config import Execution, load, parse  # noqa: E402
from coalmine.auditing.facts import AttackFacts  # noqa: E402
from coalmine.auditing.judge import Evidence  # noqa: E402
from coalmine.auditing.judge import judge as the_judge  # noqa: E402
from coalmine.auditing.proof import coins_of, prove  # noqa: E402
from coalmine.auditing.run import game_of  # noqa: E402
from coalmine.auditing.setting import prepare  # noqa: E402
from coalmine.auditing.stored import stored_result  # noqa: E402
from coalmine.cli import main  # noqa: E402
from coalmine.errors import InvalidInputError, StoreError, UnsupportedError  # noqa: E402
from coalmine.one_run import design  # noqa: E402
from coalmine.one_run.adversaries import OneRunBlackBox, OneRunWhiteBox  # noqa: E402
from coalmine.one_run.trainings import BrokenTrainingError, CanaryTask, Trainings  # noqa: E402
from coalmine.records import EpsilonClaim, Outcome, Relation, Scores  # noqa: E402
from coalmine.store import Store, Trials  # noqa: E402
from coalmine.store.listing import audits  # noqa: E402

FEATURES = 20


def data(rows=300, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, size=rows)
    x = rng.normal(size=(rows, FEATURES)) + (2 * y[:, None] - 1) * (np.arange(FEATURES) < 4)
    x[:, -3:] = 0.0
    return x.astype(np.float32), y


def settings(*, adversaries=({"name": "one-run-white-box", "canaries": 300},), training=None, **question):
    how = {"steps": 40, "sample_rate": 0.3, "target_epsilon": 8.0, "learning_rate": 0.3}
    return parse(
        {
            "model": {"hidden": [16]},
            "training": {**how, **(training or {})},
            "audit": {"delta": 1e-5, "confidence": 0.95, **question},
            "adversary": list(adversaries),
        }
    )


def play(made, store, **given):
    x, y = data()
    return coalmine.audit(made, data=(x, y, *data(seed=1)), store=store, execution=Execution(workers=1), **given)


BOTH = (
    {"name": "one-run-white-box", "canaries": 300},
    {"name": "one-run-black-box", "canaries": 40, "references": 4, "runs": 2, "scale": 4.0},
)


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    store = tmp_path_factory.mktemp("one-run") / "a.db"
    return store, play(settings(adversaries=BOTH), store)


def test_a_whole_audit_black_box_and_white_box(played):
    _, result = played
    white, black = result.adversaries
    assert result.verdict.outcome is not Outcome.REFUTED
    assert (white.trials, white.one_run.runs, black.trials, black.one_run.runs) == (300, 1, 80, 2)
    for one in (white, black):
        # The level is shared between the two, and every bound stays below the guarantee.
        assert one.one_run.design.confidence == pytest.approx(0.975)
        assert {bound.confidence for bound in (one.bound, *one.others)} == {one.one_run.design.confidence}
        assert all(bound.epsilon < result.guarantee.epsilon for bound in (one.bound, *one.others))
        assert one.bound.method in ("one_run", "one_run_fdp_epsilon_delta")
        assert one.assumed.method == "one_run_dpsgd"
        assert one.judgement.test == "guesses"
        assert one.judgement.control is not None
        assert 0.5 < one.accuracy <= 1.0
        assert abs(one.accuracy - one.one_run.with_canaries) < 0.3
    assert white.assumed.epsilon > 0.2 * result.guarantee.epsilon
    assert (white.view, black.view) == ("all_iterates", "black_box")


def test_everything_is_shown_from_the_store_alone(played, monkeypatch):
    store, result = played
    with Store.open(store) as opened:
        run = audits(opened)[0].fingerprint
        monkeypatch.setattr("coalmine.one_run.trainings.train", None)
        again = stored_result(opened, run)
    assert again.to_dict() == result.to_dict()
    tree = json.loads(again.to_json())["adversaries"][0]
    assert tree["one_run"]["guesses"]["canaries"] == 300
    assert (
        tree["one_run"]["design"]["guess_in"] + tree["one_run"]["design"]["guess_out"]
        == (tree["one_run"]["guesses"]["guesses"])
    )
    assert "300 canaries in one training" in again.in_words() or "one-run" in again.in_words()


def test_the_page_shows_canaries_coins_guesses_the_trade_off_and_the_price(played, tmp_path):
    pytest.importorskip("vl_convert", reason="needs the extra report")
    _, result = played
    result.to_html(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    for words in ("were put into one training", "2 trainings together", "The price:", "What was guessed", "guessed in"):
        assert words in text
    for what in ("scores", "trade_off"):
        assert result.plot(what, adversary=0).to_dict()["layer"]
    with pytest.raises(UnsupportedError, match="nothing grows"):
        result.plot("growth", adversary=0)


def test_the_table_names_canaries_and_trainings(played, tmp_path, capsys):
    from coalmine.cli.audit import show

    show(played[1])
    text = " ".join(capsys.readouterr().out.split())
    assert "300 canaries in one training for one-run-white-box" in text
    assert "80 canaries in 2 trainings" in text


def test_a_false_claim_is_refuted(tmp_path):
    result = play(settings(claim_epsilon=0.3, control=False), tmp_path / "a.db")
    assert result.verdict.outcome is Outcome.REFUTED
    assert "contradicts it with p" in result.verdict.reasons[0]
    assert result.adversaries[0].judgement.control is None


def test_more_runs_use_those_that_are_there(tmp_path, monkeypatch):
    store = tmp_path / "a.db"

    def section(runs):
        return settings(adversaries=[{"name": "one-run-white-box", "canaries": 60, "runs": runs}], control=False)

    first = play(section(1), store)
    trained = []
    original = CanaryTask._play
    monkeypatch.setattr(CanaryTask, "_play", lambda self, block: trained.append(block) or original(self, block))
    more = play(section(3), store)
    assert trained == [1, 2]
    assert more.adversaries[0].run == first.adversaries[0].run
    assert more.adversaries[0].trials == 180
    assert np.array_equal(more.adversaries[0].one_run.scores.score[:60], first.adversaries[0].one_run.scores.score)
    coins = more.adversaries[0].one_run.scores.included.reshape(3, 60)
    assert len({tuple(part) for part in coins.tolist()}) == 3


def test_an_audit_that_is_under_way_says_nothing_yet(tmp_path, monkeypatch):
    """The guesses were fixed for all canaries: a part of them is not judged."""
    original = CanaryTask._play

    def stopped(self, block):
        if block:
            raise KeyboardInterrupt
        return original(self, block)

    monkeypatch.setattr(CanaryTask, "_play", stopped)
    made = settings(adversaries=[{"name": "one-run-white-box", "canaries": 40, "runs": 2}], control=False)
    with pytest.raises(KeyboardInterrupt):
        play(made, tmp_path / "a.db")
    with Store.open(tmp_path / "a.db") as opened, pytest.raises(StoreError, match="no trials of this audit yet"):
        stored_result(opened, audits(opened)[0].fingerprint)


def scene(**training):
    x, y = data()
    setting = prepare(settings(training=training), data=(x, y, *data(seed=1)))
    return setting, Scene(
        base=setting.base,
        classes=2,
        network=setting.network,
        training=setting.training,
        held_out=setting.test,
    )


def test_a_run_depends_on_its_number_alone():
    setting, where = scene()
    attack = OneRunWhiteBox(canaries=50).craft(where)
    task = CanaryTask(
        trainings=Trainings(
            network=setting.network, base=setting.base, training=setting.training, attack=attack, fingerprint="f"
        )
    )
    together, alone = task.play([0, 1]), [task.play([1])[0], task.play([0])[0]][::-1]
    for a, b in zip(together, alone, strict=True):
        assert np.array_equal(a.trial, b.trial)
        assert np.array_equal(a.world, b.world)
        assert np.array_equal(a.score, b.score)
    assert together[1].trial.tolist() == list(range(50, 100))


def test_the_coins_are_fair_and_touch_nothing_else():
    """Over 4000 coins: 5.3 standard deviations are passed once in 10⁷ tries. The training without canaries is the same
    whatever the coins said."""
    setting, where = scene()
    attack = OneRunWhiteBox(canaries=200).craft(where)
    parts = Trainings(
        network=setting.network, base=setting.base, training=setting.training, attack=attack, fingerprint="fair"
    )
    coins = np.concatenate([parts.flips(run) for run in range(20)])
    assert abs(coins.mean() - 0.5) < 5.3 * 0.5 / np.sqrt(4000)
    assert np.array_equal(parts.run(None, trial=0), parts.run(np.zeros(200, dtype=bool), trial=0))


def test_the_same_options_are_the_same_adversary_and_what_is_no_score_does_not_count():
    setting, _ = scene()

    def run(**options):
        return game_of(setting, resolve("one-run-black-box", canaries=20, references=1, **options), trials=4).run

    assert run() == run(runs=3) == run(aim="bound") == run(guess_in=3)
    assert run() != run(kind="blank")
    assert run() != run(start="drawn")
    assert identity_of(adversary("one-run-black-box"))["name"] == "one-run-black-box"


def test_a_known_start_is_the_same_for_all_and_comparing_takes_off_what_a_label_adds():
    setting, where = scene()
    attack = OneRunBlackBox(canaries=30, references=2, scale=4.0).craft(where)
    assert attack.training.initialization.values.size > 0
    assert attack.training.noise_multiplier == where.training.noise_multiplier
    parts = Trainings(
        network=setting.network, base=setting.base, training=attack.training, attack=attack, fingerprint="x"
    )
    raw = np.linspace(-3.0, 5.0, 30) + 100.0 * attack.groups
    found = parts.compared(raw + parts.expected)
    for group in (0, 1):
        mine = found[attack.groups == group]
        assert np.median(mine) == pytest.approx(0.0, abs=1e-9)
        assert np.subtract(*np.quantile(mine, [0.75, 0.25])) == pytest.approx(1.0)
    assert np.all(np.isfinite(parts.compared(np.zeros(30))))  # equal scores have no spread to divide by


def test_a_training_that_breaks_off_leaves_no_score(monkeypatch):
    setting, where = scene()
    attack = OneRunWhiteBox(canaries=10).craft(where)
    parts = Trainings(
        network=setting.network, base=setting.base, training=setting.training, attack=attack, fingerprint="f"
    )

    def broken(*_, **__):
        raise BrokenTrainingError("not finite")

    monkeypatch.setattr(Trainings, "run", broken)
    found = CanaryTask(trainings=parts).play([0])[0]
    assert np.isnan(found.score).all()
    assert found.failures[0] == "not finite"
    trials = Trials(
        trial=np.arange(4),
        world=np.array([0, 1, 0, 1], dtype=np.int8),
        score=np.array([1.0, 2.0, np.nan, np.nan]),
        columns={},
        devices=("cpu",),
        elapsed=0.0,
    )
    assert coins_of(trials).score.tolist() == [1.0, 2.0, 1.5, 1.5]


# ---- the one judge ------------------------------------------------------------------------------------------------


def evidence(mu, *, claim, canaries=2000, control=None, seed=0):
    rng = np.random.default_rng(seed)
    worlds = rng.integers(0, 2, size=canaries).astype(np.int8)
    facts = AttackFacts(name="one-run", relation=Relation.ADD_REMOVE, copies=1, runs=1)
    return Evidence(
        run="f",
        attack=facts,
        trials=Trials(
            trial=np.arange(canaries),
            world=worlds,
            score=rng.normal(size=canaries) + mu * worlds,
            columns={},
            devices=("cpu",),
            elapsed=0.0,
        ),
        wanted=canaries,
        design=design(claim, canaries=canaries, confidence=0.95),
        control=None if control is None else evidence(control, claim=claim, canaries=canaries, seed=seed + 1),
    )


@pytest.mark.parametrize(
    ("mu", "control", "expected", "words"),
    [
        (2.0, None, Outcome.REFUTED, "contradicts"),
        (0.35, 2.0, Outcome.CONSISTENT, "positive control was caught"),
        (0.35, 0.3, Outcome.INCONCLUSIVE, "was not caught"),
        (0.0, None, Outcome.INCONCLUSIVE, "do not tell"),
        (0.0, 2.0, Outcome.INCONCLUSIVE, "do not tell"),
        (0.35, None, Outcome.INCONCLUSIVE, "too few for this claim"),
        (-1.0, None, Outcome.INCONCLUSIVE, "wrong way"),
    ],
)
def test_the_one_judge_reads_guesses(mu, control, expected, words):
    claim = EpsilonClaim(epsilon=1.5, delta=1e-5)
    verdict, found = the_judge([evidence(mu, claim=claim, control=control)], claim=claim, confidence=0.95)
    assert verdict.outcome is expected
    assert words in " ".join(verdict.reasons)
    assert found[0].test == "guesses"


def test_too_few_canaries_are_inconclusive_whatever_they_say():
    claim = EpsilonClaim(epsilon=8.0, delta=1e-5)
    verdict, _ = the_judge([evidence(9.0, claim=claim, canaries=100)], claim=claim, confidence=0.95)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "coalmine plan --one-run" in verdict.reasons[0]


def test_canaries_of_one_training_are_never_read_as_independent_trials():
    facts = AttackFacts(name="one-run", relation=Relation.ADD_REMOVE, copies=1, runs=1)
    with pytest.raises(UnsupportedError, match="depend on each other"):
        prove(Scores([0.0, 1.0], [1.0, 2.0]), facts, delta=1e-5, confidence=0.95)


# ---- what does not fit --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"canaries": 1}, "canaries = 1"),
        ({"runs": 0}, "runs = 0"),
        ({"aim": "win"}, "aim = 'win'"),
        ({"kind": "blank"}, "kind = 'blank'"),
        ({"guess_in": -1}, "guess_in = -1"),
        ({"per_coordinate": 0}, "per_coordinate = 0"),
        ({"knows_batches": 1}, "knows_batches"),
        ({"colour": 1}, "'colour' is not an option"),
    ],
)
def test_wrong_options_are_refused(options, words):
    with pytest.raises(InvalidInputError, match=words):
        adversary("one-run-white-box", **options)


@pytest.mark.parametrize("options", [{"kind": "dirac"}, {"references": -1}, {"scale": 0.0}, {"start": "none"}])
def test_wrong_options_of_the_black_box_are_refused(options):
    with pytest.raises(InvalidInputError, match=f"{next(iter(options))} = "):
        adversary("one-run-black-box", **options)


def test_what_one_run_cannot_do_is_said_before_it_trains(tmp_path):
    with pytest.raises(InvalidInputError, match="expected canaries"):
        play(settings(adversaries=[{"name": "one-run-white-box", "canaries": 99, "trials": 100}]), tmp_path / "a.db")
    with pytest.raises(InvalidInputError, match=r"canaries = 1000 .* at most 370"):
        play(settings(adversaries=[{"name": "one-run-white-box"}]), tmp_path / "a.db")
    silent = {"noise_multiplier": 0.0, "target_epsilon": None}
    with pytest.raises(UnsupportedError, match="no DP-SGD whose curve is known"):
        play(settings(training=silent), tmp_path / "a.db")
    local = {"noise_scale": "local", "sampling": "full", "sample_rate": None}
    with pytest.raises(UnsupportedError, match="does not fit one run"):
        play(settings(training=local), tmp_path / "a.db")
    with pytest.raises(InvalidInputError, match="learning_rate"):
        play(settings(adversaries=[{"name": "one-run-black-box"}], training={"learning_rate": 0.0}), tmp_path / "a.db")


def test_kinds_are_named_with_either_dash():
    assert OneRunBlackBox(kind="low-variance") == OneRunBlackBox(kind="low_variance")
    assert OneRunWhiteBox(kind="random-directions").kind == "random_directions"


def test_adversaries_from_the_command_line():
    found = load(adversaries=["one-run-white-box:canaries=5000,kind=random_directions", "clipbkd"]).adversary
    assert [one.name for one in found] == ["one-run-white-box", "clipbkd"]
    assert found[0].options == {"canaries": 5000, "kind": "random_directions"}
    for wrong in ("clipbkd:copies", "clipbkd:=4", "clipbkd:name=x"):
        with pytest.raises(InvalidInputError, match="name:option=value"):
            load(adversaries=[wrong])


def test_the_command_gives_the_exit_code_of_the_verdict(tmp_path, capsys):
    arguments = ["audit", "--adversary", "one-run-white-box:canaries=200", "--store", str(tmp_path / "a.db")]
    arguments += ["--workers", "1", "--set", "training.steps=10", "--set", "data.rows=200", "--json", "--no-control"]
    code = main([*arguments, "--claim-epsilon", "0.1"])
    tree = json.loads(capsys.readouterr().out)
    assert tree["adversaries"][0]["one_run"]["runs"] == 1
    assert code == {"consistent": 0, "refuted": 1, "inconclusive": 3}[tree["verdict"]["outcome"]]
    assert main(["audit", "--adversary", "one-run-white-box:canaries=1"]) == 2
    assert "canaries = 1" in capsys.readouterr().err


def test_facts_know_how_many_trainings():
    facts = AttackFacts(name="x", relation=Relation.ADD_REMOVE, copies=1, runs=3)
    assert AttackFacts.from_dict(facts.to_dict()) == facts
    old = {name: value for name, value in facts.to_dict().items() if name != "runs"}
    assert AttackFacts.from_dict(old) == dataclasses.replace(facts, runs=0)
