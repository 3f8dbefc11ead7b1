"""A user's own training plays the same game: verdicts, seeds, reuse, failures, worker processes."""

import functools
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import own_functions as own
import pandas
import pytest
import torch
from torch.utils.data import TensorDataset

from coalmine import Worlds, audit, audit_function, neighbours
from coalmine.auditing.config import Execution
from coalmine.auditing.stored import stored_result
from coalmine.errors import GameStoppedError, InvalidInputError, StoreError, WorkersDiedError
from coalmine.game import Watcher
from coalmine.integrations import functions, task
from coalmine.integrations.content import content_hash
from coalmine.integrations.task import seed_of
from coalmine.records import DpSgd, EpsilonClaim, Outcome, Relation
from coalmine.store import Store


def play(tmp_path, train=own.train, score=own.score, *, worlds=own.worlds, trials=64, **options):
    options = {"claim_epsilon": 1.0, "store": tmp_path / "trials.db", **options}
    if not {"workers", "timeout", "execution"} & options.keys():
        options["execution"] = Execution(engine="inline")  # starting a process takes a second
    return audit_function(train, score, worlds=worlds, trials=trials, **options)


def stored(tmp_path, result=None):
    with Store.open(tmp_path / "trials.db") as store:
        runs = store.runs()
        return [(run.trials, run.failed_trials) for run in runs], [store.failures(run.fingerprint) for run in runs]


def test_a_leaky_training_is_refuted_and_its_result_is_whole(tmp_path):
    result = play(tmp_path)  # shift 1, noise 0.1: the worlds are always told apart
    assert result.verdict.outcome is Outcome.REFUTED
    assert (result.guarantee, result.heuristic) == (None, None)  # a claim is no guarantee
    assert result.claim == EpsilonClaim(epsilon=1.0, delta=1e-5)
    assert result.promised == result.claim_epsilon == 1.0
    only = result.strongest
    assert sum(only.bound.trials) == 64
    assert only.bound.epsilon > 1.0
    assert result.to_dict()["config"]["train"] == "own_functions:train"
    with Store.open(tmp_path / "trials.db") as store:
        again = stored_result(store, only.run)
    assert again.to_json() == result.to_json()


def test_scores_that_tell_nothing_say_nothing_for_the_claim(tmp_path, fixed_seeds):
    """The row adds nothing. Nothing is refuted, but a score that is blind would not have shown a leak either."""
    result = play(tmp_path, worlds=(np.zeros(3), np.zeros(4)), claim_epsilon=3.0, trials=1000)
    assert result.verdict.outcome is Outcome.INCONCLUSIVE
    assert result.verdict.ceiling > 3.0
    assert result.strongest.judgement.share is not None  # there were enough trials
    assert "do not tell the worlds apart" in " ".join(result.verdict.reasons)


def test_the_score_may_ask_for_the_canary(tmp_path):
    assert play(tmp_path, score=own.score_with_canary).verdict.outcome is Outcome.REFUTED


def test_seeds_are_distinct_and_small_enough_for_every_generator():
    seeds = [seed_of("0123abcd", trial) for trial in range(5000)]
    assert len(set(seeds)) == 5000
    assert min(seeds) >= 0
    assert max(seeds) < 2**31
    assert seed_of("0123abce", 0) != seeds[0]


def test_no_bit_of_a_seed_tells_the_world():
    """31 bits in 4 runs of 4096 trials: shares differ by six standard errors once in 4 million runs of this test."""
    for run in ("a", "b", "c", "0123abcd"):
        bits = np.array([[seed_of(run, trial) >> place & 1 for place in range(31)] for trial in range(4096)])
        apart = bits[::2].mean(axis=0) - bits[1::2].mean(axis=0)
        assert np.abs(apart).max() < 6.0 * np.sqrt(0.25 * 2 / 2048), run
        # Nor is one seed the last one plus a constant: weak generators would then give trials that hang together.
        seeds = np.array([seed_of(run, trial) for trial in range(4096)])
        assert np.unique(np.diff(seeds) % 2**31).size > 4000


@pytest.mark.parametrize("apart", [100.0, -100.0, 50.0, -50.0])
def test_what_a_training_takes_from_the_seed_does_not_refute_it(tmp_path, apart):
    """One of two starts by ``seed % 2``, then noise of 2 on a sum: ε is 2 at δ = 1e-5, whatever the starts."""
    train = functools.partial(own.train_from_one_of_two_starts, apart=apart)
    result = play(tmp_path, train, trials=400, claim_epsilon=2.5)
    assert result.verdict.outcome is not Outcome.REFUTED
    assert result.strongest.bound.epsilon < 2.5 < result.verdict.ceiling


def test_trials_that_draw_from_global_generators_are_independent_and_repeatable(tmp_path):
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # noqa: NPY002
    first = play(tmp_path, own.train_from_global_state, trials=32).strongest.scores
    (tmp_path / "trials.db").unlink()
    second = play(tmp_path, own.train_from_global_state, trials=32).strongest.scores
    assert first.world0.tolist() == second.world0.tolist()
    assert np.unique(np.concatenate([first.world0, first.world1])).size == 32
    assert random.getstate() == before[0]
    assert np.random.get_state()[1].tolist() == before[1]  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), before[2])


def test_stored_trials_are_reused_and_added_to(tmp_path):
    calls = []

    class Count:
        def begin(self, label, *, trials, copies, done):
            calls.append(sum(len(part) for part in done))

        def block(self, result):
            calls.append("block")

        def where(self, status):
            pass

        def end(self):
            pass

    play(tmp_path, trials=32, watcher=Count())
    play(tmp_path, trials=32, claim_epsilon=2.0, watcher=Count())
    play(tmp_path, trials=48, watcher=Count())
    assert calls == [0, "block", "block", 32, 32, "block"]


def test_other_arguments_are_another_run(tmp_path):
    one = play(tmp_path, trials=16)
    two = play(tmp_path, functools.partial(own.train, sigma=0.2), trials=16)
    three = play(tmp_path, worlds=(np.ones(3), np.ones(4)), trials=16)
    four = play(tmp_path, seed=1, trials=16)
    assert len({result.strongest.run for result in (one, two, three, four)}) == 4
    assert two.subject.name == "own_functions:train(sigma=0.2)"


def test_data_are_not_hashed_again_for_every_block(tmp_path, monkeypatch):
    """Once for what they are, once for each group of blocks, to see that nobody has changed them."""
    hashed = []
    monkeypatch.setattr(task, "contents", lambda worlds: hashed.append(1) or ("0", "1", "2"))
    monkeypatch.setattr(functions, "contents", lambda worlds: hashed.append(1) or ("0", "1", "2"))
    play(tmp_path, trials=1600)
    assert len(hashed) < 20  # of 100 blocks


def test_workers_give_the_same_trials(tmp_path):
    here = play(tmp_path, trials=48).strongest.scores
    (tmp_path / "trials.db").unlink()
    there = play(tmp_path, trials=48, workers=2).strongest.scores
    assert here.world0.tolist() == there.world0.tolist()
    assert here.world1.tolist() == there.world1.tolist()


def test_a_function_that_trains_many_gives_the_same_trials(tmp_path, fixed_seeds):
    """Held against the seeds themselves."""
    result = play(tmp_path, own.train_many, batched=5, trials=48)
    assert sum(result.strongest.bound.trials) == 48
    run = result.strongest.run
    worlds = own.worlds()
    expected = [own.train(worlds.world0, seed_of(run, trial)) for trial in range(0, 48, 2)]
    assert result.strongest.scores.world0.tolist() == expected


def test_trials_of_single_seeds_are_not_taken_for_those_of_calls_that_train_many(tmp_path):
    """The function may go another way there. How many seeds a call has is no matter."""
    alone = play(tmp_path, own.train_either_way).strongest
    many, more = (play(tmp_path, own.train_either_way, batched=number).strongest for number in (8, 5))
    assert np.unique(alone.scores.world0).size == 32
    assert np.unique(many.scores.world0).size == 1
    assert alone.run != many.run == more.run


def test_a_training_that_fails_among_many_fails_alone(tmp_path):
    result = play(tmp_path, own.train_many_unless_one_is_unlucky, batched=8, trials=64)
    [_, [reasons]] = stored(tmp_path)
    assert 0 < sum(result.strongest.failed) < 32
    assert len(reasons) == sum(result.strongest.failed)


@pytest.mark.parametrize("batched", [2, 5, 64])
@pytest.mark.parametrize(
    "train",
    [
        own.train_many_sharing_noise,
        functools.partial(own.train_many_sharing_noise, shared=0.3),
        own.train_many_sharing_drawn_rows,
    ],
)
def test_models_of_a_call_that_share_what_is_random_stop_the_game(tmp_path, train, batched):
    worlds = neighbours(np.arange(1.0, 20.0), 20.0)
    with pytest.raises(GameStoppedError, match="another model for the same seed where other seeds share its call"):
        play(tmp_path, train, batched=batched, trials=64, worlds=worlds)
    assert stored(tmp_path)[0] == [(0, 0)]


def test_models_of_a_call_may_be_rounded_otherwise_in_other_company(tmp_path):
    assert sum(play(tmp_path, own.train_many_in_single_precision, batched=64, trials=64).strongest.failed) == 0


def test_models_that_are_missing_are_named(tmp_path):
    with pytest.raises(GameStoppedError, match="gave 7 models for 8 seeds: expected one for each"):
        play(tmp_path, own.train_many_but_one, batched=8)


def test_what_a_training_prints_is_no_part_of_the_result(tmp_path, capfd):
    play(tmp_path, own.train_prints, trials=16)
    shown = capfd.readouterr()
    assert "loss" not in shown.out
    assert shown.err.count("loss: 0.1") == 16


def test_threads_are_limited_while_it_trains(tmp_path):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        one = play(tmp_path, functools.partial(own.train_telling_its_threads), trials=16, threads=1).strongest.scores
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert 0.0 < one.world0.mean() < 1.5


def test_a_bar_is_drawn_where_somebody_sees_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    play(tmp_path, trials=16)
    assert "own training (own_functions:train)" in capsys.readouterr().err
    play(tmp_path, trials=32, watcher=Watcher())
    assert capsys.readouterr().err == ""


# ---- failures ---------------------------------------------------------------------------------------------------


def test_a_training_that_raises_fails_its_trial_with_its_reason(tmp_path):
    result = play(tmp_path, own.train_raises_sometimes)
    failed = sum(result.strongest.failed)
    assert 0 < failed < 64
    lowest = min(result.strongest.scores.world0.min(), result.strongest.scores.world1.min())
    both = np.concatenate([result.strongest.scores.world0, result.strongest.scores.world1])
    assert (both == lowest).sum() == failed
    [[(trials, failures)], [reasons]] = stored(tmp_path)
    assert (trials, failures) == (64, failed)
    assert reasons[0].reason.startswith("train raised ValueError (own_functions.py, line")
    assert any("ValueError" in note for note in result.strongest.notes)


@pytest.mark.parametrize("options", [{}, {"workers": 1}])
def test_a_training_that_goes_on_from_the_last_one_stops_the_game(tmp_path, options, monkeypatch):
    monkeypatch.setattr(own, "MODEL", np.zeros(1))
    with pytest.raises(GameStoppedError, match=r"leave something behind for the next one \(own_functions.MODEL\)"):
        play(tmp_path, own.train_goes_on, **options)


def test_what_no_training_reads_may_be_named_and_what_is_loaded_once_is_no_matter(tmp_path):
    play(tmp_path, own.train_goes_on, depends_on={"own_functions.MODEL": "unused"})
    play(tmp_path, own.train_that_loads_once)


@pytest.mark.parametrize(
    ("train", "words"),
    [
        (own.goes_on_from_a_file, "reads 'left.npy'"),
        (own.goes_on_from_a_file_by_number, "reads 'left.npy'"),
        (own.goes_on_from_what_it_added, "reads 'left.npy'"),
        (own.goes_on_from_a_file_that_is_moved, "reads 'left.npy'"),
        (own.goes_on_from_a_file_of_torch, "reads 'left.npy'"),
        (own.goes_on_from_the_environment, "the environment variable COALMINE_TEST_LEFT"),
        (own.goes_on_from_itself, r"own_functions\.goes_on_from_itself\.model"),
    ],
)
def test_what_the_last_training_left_in_a_file_or_elsewhere_stops_the_game(tmp_path, train, words):
    with pytest.raises(GameStoppedError, match=f"leave something behind for the next one .*{words}"):
        play(tmp_path, functools.partial(train, path=tmp_path / "left.npy"))
    assert "COALMINE_TEST_LEFT" not in os.environ
    vars(own.goes_on_from_itself).pop("model", None)


@pytest.mark.parametrize("train", [own.goes_on_from_a_file, own.goes_on_from_a_file_of_torch])
def test_a_file_that_is_named_must_not_be_one_that_trainings_write(tmp_path, train):
    left = tmp_path / "left.npy"
    torch.save(torch.zeros(1), left) if "torch" in train.__name__ else np.save(left, 0.0)
    with pytest.raises(GameStoppedError, match=r"leave something behind for the next one .*reads 'left.npy'"):
        play(tmp_path, functools.partial(train, path=left), depends_on={"left": left})


def test_a_file_that_is_named_must_not_change_during_the_game(tmp_path):
    settings = tmp_path / "settings.txt"
    settings.write_text("1.0")
    reads = functools.partial(own.train_by_a_file, path=settings)
    play(tmp_path, reads, depends_on={"settings": settings})
    os.utime(settings, ns=(0, 2**62))
    with pytest.raises(GameStoppedError, match=r"leave something behind for the next one .*reads 'settings.txt'"):
        play(tmp_path, reads, depends_on={"settings": settings}, seed=1)


@pytest.mark.parametrize("options", [{}, {"workers": 1}])
def test_files_that_no_later_training_reads_are_no_matter(tmp_path, options):
    play(tmp_path, functools.partial(own.train_with_files, path=tmp_path), **options)
    assert len((tmp_path / "log.txt").read_text().splitlines()) >= 64
    assert "COALMINE_TEST_ONCE" not in os.environ


def test_a_score_may_read_what_a_call_that_trains_many_has_written(tmp_path):
    train = functools.partial(own.train_many_into_files, path=tmp_path)
    play(tmp_path, train, own.score_of_a_file, batched=8)


def test_a_control_that_fails_is_called_one(tmp_path):
    with pytest.raises(GameStoppedError, match="control raised ValueError"):
        play(tmp_path, own.right, control=own.train_raises)


def test_nan_scores_fail_their_trials(tmp_path):
    assert sum(play(tmp_path, functools.partial(own.train, sigma=1.0), own.score_nan_sometimes).strongest.failed) > 0


@pytest.mark.parametrize(
    ("train", "score", "words"),
    [
        (own.train_raises, own.score, r"all 16 trainings of block 0 failed \(trial 0: train raised ValueError: boom"),
        (own.train_exits, own.score, "train raised SystemExit: 3"),
        (own.train_runs_out_of_memory, own.score, "train raised MemoryError.*looks like the machine"),
        (own.train_changes_its_data, own.score, "changed its data set in place"),
        (own.train, own.score_nan, "score gave nan: expected a finite number"),
        (own.train, own.score_two, "gave 2 numbers for trial 0: expected one number"),
        (own.train, own.score_nothing, "gave None for trial 0: expected one number"),
    ],
)
def test_what_stops_the_game_says_why_and_keeps_what_is_stored(tmp_path, train, score, words):
    with pytest.raises(GameStoppedError, match=words):
        play(tmp_path, train, score)
    [counts, [reasons]] = stored(tmp_path)
    assert counts == [(0, 0)]
    assert reasons[0].trial is None  # the block is not done: the next run tries it again
    assert reasons[0].reason


def test_a_training_past_the_timeout_is_stopped_and_nothing_is_lost(tmp_path, monkeypatch):
    flags = tmp_path / "flags"
    flags.mkdir()
    monkeypatch.setenv("COUNT_IN", str(flags))
    with pytest.raises(WorkersDiedError, match=r"training of trial \d+ took longer than 3 seconds.*own_functions.py"):
        play(tmp_path, own.train_hangs_late, timeout=3.0)
    [[(trials, _)], _] = stored(tmp_path)
    assert trials >= 16
    monkeypatch.delenv("COUNT_IN")
    assert sum(play(tmp_path, own.train_hangs_late, timeout=60.0).strongest.bound.trials) == 64


def test_a_worker_that_dies_is_reported(tmp_path):
    with pytest.raises(WorkersDiedError, match="ended without a word"):
        play(tmp_path, own.train_kills_its_process, workers=2)


def test_a_script_needs_no_guard(tmp_path):
    """Workers are given the functions themselves and do not run the script again."""
    text = (
        "import own_functions as own, coalmine\n"
        "print('started')\n"
        "def train(dataset, seed):\n    return own.train(dataset, seed)\n"
        "result = coalmine.audit_function(\n"
        "    train, own.score, worlds=own.worlds, claim_epsilon=1.0, trials=32, workers=2)\n"
        "print(sum(result.strongest.bound.trials))\n"
    )
    (tmp_path / "script.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(own.__file__).parent), *filter(None, sys.path)])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout.split()) == (0, ["started", "32"]), done.stderr


# ---- bad input --------------------------------------------------------------------------------------------------


def test_worlds_that_are_not_the_same_each_time(tmp_path):
    with pytest.raises(GameStoppedError, match="gives other data each time"):
        play(tmp_path, worlds=own.random_worlds)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"worlds": own.wrong_worlds}, "worlds gave 3 parts: expected a pair"),
        ({"worlds": 3}, "worlds gave an object of type int"),
        ({"worlds": (own.Opaque(), own.Opaque())}, "without a content hash"),
        ({"train": own.train_without_seed}, r"cannot be called as train\(dataset, seed\)"),
        ({"score": own.score_with_three}, r"cannot be called as score\(model\) or score\(model, canary\)"),
        ({"train": 3}, "train = 3 is not allowed: expected a function"),
        ({"timeout": -1.0}, "timeout = -1.0 is not allowed"),
        ({"trials": 2}, "trials = 2 is not allowed"),
        ({"delta": 0.0}, "delta = 0.0 is not allowed"),
        ({"confidence": 1 - 1e-9}, "confidence = .* is too high"),
        ({"claim_epsilon": None}, "claim_epsilon is missing"),
        ({"claim_epsilon": -1.0}, "claim_epsilon = -1.0 is not allowed"),
        ({"claim_dpsgd": DpSgd(sample_rate=1, noise_multiplier=1, steps=1)}, "not allowed beside claim_dpsgd"),
        ({"claim": EpsilonClaim(epsilon=1.0, delta=1e-5)}, "claim is not allowed beside claim_epsilon"),
        ({"claim": 1.0, "claim_epsilon": None}, "claim = 1.0 is not allowed: expected an object of type EpsilonClaim"),
        (
            {"claim": EpsilonClaim(epsilon=1.0, delta=1e-6), "claim_epsilon": None, "delta": 1e-5},
            "delta = 1e-05 is not allowed: expected that of the claim, 1e-06",
        ),
        (
            {"claim": EpsilonClaim(epsilon=1.0, delta=1e-6, relation="replace"), "claim_epsilon": None},
            "expected the same relation",
        ),
        ({"control": 3}, "control = 3 is not allowed: expected a function"),
        (
            {
                "claim_epsilon": None,
                "claim_dpsgd": DpSgd(sample_rate=1, noise_multiplier=1, steps=1, relation="replace"),
            },
            "expected the same relation",
        ),
    ],
)
def test_bad_input_is_named(tmp_path, options, words):
    with pytest.raises(ValueError, match=words):
        play(tmp_path, **options)
    assert not (tmp_path / "trials.db").exists() or stored(tmp_path) == ([], [])


def test_a_run_without_trials_has_no_result(tmp_path):
    with pytest.raises(GameStoppedError):
        play(tmp_path, own.train_raises)
    with Store.open(tmp_path / "trials.db") as store, pytest.raises(StoreError, match="no trials of this audit yet"):
        stored_result(store, store.runs()[0].fingerprint)


# ---- neighbours -------------------------------------------------------------------------------------------------


def test_neighbours_of_every_kind_of_data():
    data = TensorDataset(torch.zeros(3, 2), torch.tensor([0, 1, 0]))
    added = neighbours(data, ([1.0, 2.0], 1), copies=2)
    assert (len(added.world0), len(added.world1), added.copies) == (3, 5, 2)
    assert added.world1[4][0].tolist() == [1.0, 2.0]
    swapped = neighbours(np.zeros((3, 2)), [1.0, 2.0], relation="replace", row=0)
    assert swapped.world1.tolist() == [[1.0, 2.0], [0.0, 0.0], [0.0, 0.0]]
    assert swapped.world0.tolist() == [[0.0, 0.0]] * 3
    assert swapped.relation is Relation.REPLACE
    assert neighbours(["a", "b"], "c").world1 == ["a", "b", "c"]
    assert neighbours(["a", "b"], "c", relation="replace").world1 == ["a", "c"]


class Items(torch.utils.data.Dataset):
    """A data set that only gives items."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return torch.full((2,), float(index)), index % 2


def test_neighbours_of_data_sets_that_give_items():
    row = (torch.ones(2), 1)
    added = neighbours(Items(), row)
    assert (len(added.world1), added.world1[3]) == (4, row)
    swapped = neighbours(Items(), row, relation="replace", row=0).world1
    assert (len(swapped), swapped[0], swapped[2][1]) == (3, row, 0)
    assert content_hash(added.world0) != content_hash(added.world1)


def test_neighbours_of_data_frames():
    for name in ("pandas", "polars"):
        library = pytest.importorskip(name, reason=f"{name} is not installed")
        frame = library.DataFrame({"age": [1, 2, 3], "name": ["a", "b", "c"]})
        added = neighbours(frame, {"age": 9, "name": "z"}, copies=2).world1
        assert (len(added), list(added["name"]), added["age"].dtype) == (
            5,
            ["a", "b", "c", "z", "z"],
            frame["age"].dtype,
        )
        swapped = neighbours(frame, {"age": 9, "name": "z"}, relation="replace", row=0).world1
        assert list(swapped["age"]) == [9, 2, 3]
        assert len({content_hash(one) for one in (frame, added, swapped)}) == 3
        assert content_hash(frame) == content_hash(library.DataFrame({"age": [1, 2, 3], "name": ["a", "b", "c"]}))
        with pytest.raises(InvalidInputError, match="expected a value for each of"):
            neighbours(frame, {"age": 9})


def test_neighbours_of_hugging_face_data_sets():
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    data = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]})
    added = neighbours(data, {"text": "z", "label": 1}).world1
    assert (added["text"][:], added.features) == (["a", "b", "z"], data.features)
    assert len({content_hash(one) for one in (data, added)}) == 2


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        ((np.zeros((3, 2)), [1.0]), {}, "canary does not fit"),
        (((np.zeros((3, 2)), np.zeros(3)), [1.0]), {}, "canary has 1 parts: expected 2"),
        ((np.zeros(3), 1.0), {"relation": "replace", "row": 3}, "row = 3 is not allowed"),
        ((np.zeros(3), 1.0), {"relation": "replace", "copies": 2}, "copies = 2 is not allowed"),
        ((np.zeros(3), 1.0), {"relation": "swap"}, "relation = 'swap' is not allowed"),
        ((np.zeros(3), 1.0), {"copies": 0}, "copies = 0 is not allowed"),
        ((np.zeros(3, dtype=int), 0.9), {}, "canary = 0.9 becomes 0 among rows of int64"),
        ((torch.zeros(3, dtype=torch.long), 0.9), {}, "canary = 0.9 becomes 0.0 among rows of torch.int64"),
        (((np.zeros((3, 2)), np.zeros(3, dtype=int)), ([1.0, 1.0], 0.7)), {}, "canary = 0.7 becomes 0"),
        ((np.array(["a", "bb"]), "longer"), {}, "canary = 'longer' becomes 'lo'"),
        ((np.zeros(3, dtype=np.float16), 1e6), {}, "becomes inf among rows of float16"),
        ((np.zeros(3, dtype=np.uint8), 300), {"relation": "replace"}, "canary does not fit the data set"),
        ((pandas.DataFrame({"age": [1, 2]}), {"age": 0.5}), {}, "canary = 0.5 becomes 0 among rows of int64"),
    ],
)
def test_neighbours_names_bad_input(arguments, options, words):
    with pytest.raises(InvalidInputError, match=words):
        neighbours(*arguments, **options)


def test_worlds_check_themselves():
    with pytest.raises(InvalidInputError, match="relation"):
        Worlds(world0=[], world1=[1], relation="other")


def test_nobody_to_score_and_nobody_to_attack_are_refused(tmp_path):
    with pytest.raises(InvalidInputError, match=r"score = \{\} is not allowed: expected a function"):
        play(tmp_path, score={})
    with pytest.raises(InvalidInputError, match=r"adversaries = \[\] is not allowed: expected a list"):
        audit(adversaries=[], store=tmp_path / "a.db")


def test_a_module_of_another_width_is_refused(tmp_path):
    given = np.zeros((20, 6), dtype=np.float32), np.arange(20) % 2
    with pytest.raises(InvalidInputError, match=r"body does not take rows of shape \(6,\)"):
        audit(data=given, model=torch.nn.Linear(5, 2), store=tmp_path / "a.db")


@pytest.mark.parametrize("text", ["1,1", "1,1,1,sideways", "1,1,1,full,shuffle", "a,b,c"])
def test_a_claim_that_is_none(text):
    with pytest.raises(InvalidInputError, match=r"such as 0.01,1.1,1000, and where they are not add_remove"):
        functions.parse_dpsgd("claim_dpsgd", text)
