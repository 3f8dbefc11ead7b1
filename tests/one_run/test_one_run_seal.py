"""The seal: what goes where, who may read it, and every kind of tampering refused with its reason."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from coalmine.errors import InvalidInputError
from coalmine.one_run import canaries, files, seal
from coalmine.one_run.design import design
from coalmine.records import EpsilonClaim, Outcome

CANARIES = 200


@pytest.fixture
def made(tmp_path):
    rows = np.random.default_rng(0).normal(size=(50, 6))
    chosen = canaries.extreme(rows, classes=3, canaries=CANARIES)
    plan = design(EpsilonClaim(epsilon=0.5, delta=1e-5), canaries=CANARIES)
    return seal.prepare(chosen, design=plan, folder=tmp_path / "run")


def scored(made, *, strength=6.0, ids=None):
    """A score file of a training that leaks: written as a scorer would, from ids and the truth that it cannot know."""
    opened = seal.open_seal(made.folder)
    rng = np.random.default_rng(1)
    rows = [
        [name, repr(float(rng.normal() + strength * flip))]
        for name, flip in zip(opened.ids, opened.included, strict=True)
    ]
    path = made.folder.parent / "scores.csv"
    write_rows(path, rows)
    return path, rows


def write_rows(path, rows):
    path.write_text("id,score\n" + "".join(",".join(row) + "\n" for row in rows))


def edit(path, change):
    tree = json.loads(path.read_text())
    change(tree)
    path.write_text(json.dumps(tree))
    path.chmod(0o600)


def test_what_goes_to_the_training_holds_only_what_was_included(made):
    opened = seal.open_seal(made.folder)
    with np.load(made.folder / "train/run-1.npz") as train, np.load(made.folder / "score/run-1.npz") as score:
        assert sorted(train.files) == ["x", "y"]
        assert train["x"].shape[0] == opened.included.sum()
        wanted = score["x"][opened.included]
        assert sorted(map(tuple, train["x"].tolist())) == sorted(map(tuple, wanted.tolist()))
        # Not in the order of the ids: places would say which canaries were left out between two that are there.
        assert not np.array_equal(train["x"], wanted)
    public = made.manifest.read_text()
    assert json.loads(made.seal.read_text())["secret"] not in public
    for path in (made.folder / "train/run-1.npz", made.folder / "score/run-1.npz"):
        assert bytes.fromhex(json.loads(made.seal.read_text())["secret"]) not in path.read_bytes()


def test_the_secret_is_for_its_owner_alone(made):
    assert made.seal.stat().st_mode & 0o777 == 0o600


def test_coins_are_fair_and_do_not_depend_on_each_other():
    flips = seal.coins(b"k" * 32, [f"a-1-{i}" for i in range(40_000)]).astype(float)
    # 40,000 fair coins are within 5 standard deviations of half but for one in 1.7 million; so are pairs of neighbors.
    assert abs(flips.mean() - 0.5) < 5 * 0.5 / 200
    assert abs(np.corrcoef(flips[:-1], flips[1:])[0, 1]) < 5 / 200


def test_scores_are_joined_by_id_and_never_by_order(made):
    path, rows = scored(made)
    first = seal.judge_folder(made.folder, scores=path)
    write_rows(path, rows[::-1])
    again = seal.judge_folder(made.folder, scores=path)
    assert first.verdict.outcome is Outcome.REFUTED
    assert again.guesses == first.guesses


@pytest.mark.parametrize("suffix", [".npz", ".jsonl"])
def test_scores_may_come_in_other_files(made, suffix):
    _, rows = scored(made)
    path = made.folder.parent / f"scores{suffix}"
    if suffix == ".npz":
        np.savez(path, id=np.array([row[0] for row in rows]), score=np.array([float(row[1]) for row in rows]))
    else:
        path.write_text("".join(json.dumps({"id": row[0], "score": float(row[1])}) + "\n" for row in rows))
    assert seal.judge_folder(made.folder, scores=path).verdict.outcome is Outcome.REFUTED


def test_several_runs_are_pooled_and_have_their_own_coins(tmp_path):
    chosen = canaries.dirac(parameters=500, canaries=100)
    plan = design(EpsilonClaim(epsilon=0.5, delta=1e-5), canaries=300)
    made = seal.prepare(chosen, design=plan, folder=tmp_path / "run", runs=3)
    opened = seal.open_seal(made.folder)
    assert len(set(opened.ids)) == 300
    parts = opened.included.reshape(3, 100)
    assert not np.array_equal(parts[0], parts[1])
    paths = []
    for part in range(3):
        paths.append(tmp_path / f"scores-{part}.csv")
        names = opened.ids[100 * part : 100 * (part + 1)]
        write_rows(paths[-1], [[name, str(float(flip))] for name, flip in zip(names, parts[part], strict=True)])
    assert seal.judge_folder(made.folder, scores=paths).guesses.canaries == 300


# ---- tampering, one test each --------------------------------------------------------------------------------------


def refused(made, path, *words, **options):
    before = made.seal.read_bytes() if made.seal.exists() else b""
    with pytest.raises(InvalidInputError) as error:
        seal.judge_folder(made.folder, scores=path, **options)
    for word in words:
        assert word in str(error.value)
    assert (made.seal.read_bytes() if made.seal.exists() else b"") == before, "a refusal must not mark the seal"


def test_refused_coins_changed(made):
    path, _ = scored(made)
    edit(made.seal, lambda tree: tree.update(secret="0" * 64))
    refused(made, path, "does not fit the seal")


def test_refused_claim_changed(made):
    path, _ = scored(made)
    edit(made.manifest, lambda tree: tree["design"]["claim"].update(epsilon=20.0))
    refused(made, path, "the claim", "was changed after")


def test_refused_guess_numbers_changed(made):
    path, _ = scored(made)
    edit(made.manifest, lambda tree: tree["design"].update(guess_in=1, guess_out=1))
    refused(made, path, "numbers of guesses", "was changed after")


def test_refused_confidence_changed(made):
    path, _ = scored(made)
    edit(made.manifest, lambda tree: tree["design"].update(confidence=0.5))
    refused(made, path, "was changed after")


def test_refused_method_changed(made):
    path, _ = scored(made)
    edit(made.manifest, lambda tree: tree["design"].update(method="one_run_fdp"))
    refused(made, path, "was changed after")


def test_refused_manifest_of_another_run(made, tmp_path):
    path, _ = scored(made)
    other = seal.prepare(
        canaries.dirac(parameters=500, canaries=CANARIES), design=made.design, folder=tmp_path / "other"
    )
    refused(made, path, "do not belong together", manifest=other.manifest)


def test_refused_manifest_that_was_not_the_one_told_beforehand(made):
    path, _ = scored(made)
    refused(made, path, "told beforehand", digest="ab" * 32)
    tree = json.loads(made.manifest.read_text(encoding="utf-8"))  # the digest as docs/one-run.md computes it
    text = json.dumps(tree, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert hashlib.sha256(text.encode()).hexdigest() == made.digest
    assert seal.judge_folder(made.folder, scores=path, digest=made.digest).verdict.outcome is Outcome.REFUTED


def test_refused_scores_missing(made):
    path, rows = scored(made)
    write_rows(path, rows[3:])
    refused(made, path, "no score for", rows[0][0], "3 of 200")


def test_refused_id_twice(made):
    path, rows = scored(made)
    write_rows(path, [*rows, rows[7]])
    refused(made, path, rows[7][0], "occurs twice")


def test_refused_unknown_canary(made):
    path, rows = scored(made)
    write_rows(path, [*rows, ["someone-1-1", "0.5"]])
    refused(made, path, "someone-1-1", "no canary of this run")


def test_refused_scores_of_another_run(made, tmp_path):
    other = seal.prepare(
        canaries.dirac(parameters=500, canaries=CANARIES), design=made.design, folder=tmp_path / "elsewhere" / "run"
    )
    path, _ = scored(other)
    refused(made, path, "no canary of this run has that id")


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "", "much"])
def test_refused_score_that_is_no_number(made, value):
    path, rows = scored(made)
    rows[5][1] = value
    write_rows(path, rows)
    refused(made, path, rows[5][0], "expected a finite number")


def test_refused_scores_that_tell_the_coins(made):
    path, rows = scored(made)
    path.write_text("id,score,included\n" + "".join(",".join([*row, "1"]) + "\n" for row in rows))
    refused(made, path, "included", "without that knowledge")


def test_refused_canaries_changed_after_the_fact(made):
    path, _ = scored(made)
    with np.load(made.folder / "score/run-1.npz") as old:
        changed = {name: old[name] for name in old.files}
    changed["x"] = changed["x"] + 1.0
    np.savez(made.folder / "score/run-1.npz", **changed)
    refused(made, path, "score/run-1.npz", "changed after")


def test_refused_training_rows_changed_after_the_fact(made):
    path, _ = scored(made)
    with np.load(made.folder / "train/run-1.npz") as old:
        np.savez(made.folder / "train/run-1.npz", x=old["x"][1:], y=old["y"][1:])
    refused(made, path, "train/run-1.npz", "changed after")


def test_refused_second_judging_with_other_scores(made):
    path, rows = scored(made)
    first = seal.judge_folder(made.folder, scores=path)
    assert json.loads(made.seal.read_text())["judged"]["outcome"] == "refuted"
    assert made.seal.stat().st_mode & 0o777 == 0o600
    assert seal.judge_folder(made.folder, scores=path).to_dict() == first.to_dict()
    rows[0][1] = "0.0"
    write_rows(path, rows)
    refused(made, path, "was opened on", "verdict: refuted", "prepare a new run")


def test_refused_seal_that_others_may_read(made):
    path, _ = scored(made)
    made.seal.chmod(0o644)
    refused(made, path, "others may read the seal", "644")


@pytest.mark.parametrize("keep", [0, 1, 40])
@pytest.mark.parametrize("which", ["seal", "manifest"])
def test_refused_damaged_file(made, which, keep):
    path, _ = scored(made)
    file = getattr(made, which)
    file.write_bytes(file.read_bytes()[:keep])
    refused(made, path, file.name, "damaged")


@pytest.mark.parametrize("which", ["seal", "manifest"])
def test_refused_file_that_is_something_else(made, which):
    path, _ = scored(made)
    edit(getattr(made, which), lambda tree: tree.update(format="something else"))
    refused(made, path, "something else", "expected 'coalmine one-run")


def test_refused_seal_or_scores_that_are_not_there(made):
    path, _ = scored(made)
    refused(made, made.folder / "nowhere.csv", "no such file")
    made.seal.unlink()
    refused(made, path, "seal.json", "no such file")


def test_refused_folder_in_use(made):
    with pytest.raises(InvalidInputError, match="not empty"):
        seal.prepare(canaries.dirac(parameters=500, canaries=CANARIES), design=made.design, folder=made.folder)


def test_one_judge_at_a_time(made):
    path, _ = scored(made)
    with files.locked(made.folder / ".seal.json.lock"):
        refused(made, path, "another process is judging")
    assert seal.judge_folder(made.folder, scores=path).verdict.outcome is Outcome.REFUTED


def test_a_killed_writer_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "seal.json"
    files.write(path, b"old", secret=True)
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        files.write(path, b"new", secret=True)
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["seal.json"]


TRAINING = """
import sys
import numpy as np
folder, out = sys.argv[1:]
train, score = np.load(f"{folder}/train/run-1.npz"), np.load(f"{folder}/score/run-1.npz")
seen = {tuple(row) for row in train["x"].tolist()}  # a model that remembers every row
with open(out, "w") as file:
    file.write("id,score\\n")
    for name, row in zip(score["id"], score["x"].tolist()):
        file.write(f"{name},{float(tuple(row) in seen)}\\n")
assert not any(name.startswith("coalmine") for name in sys.modules)
"""


def test_a_training_in_another_process_never_imports_coalmine(tmp_path):
    rows = np.random.default_rng(0).normal(size=(50, 20))
    chosen = canaries.extreme(rows, classes=3, canaries=CANARIES)
    plan = design(EpsilonClaim(epsilon=2.0, delta=1e-5), canaries=CANARIES)
    made = seal.prepare(chosen, design=plan, folder=tmp_path / "run")
    secret = Path(tmp_path / "kept-by-the-judge.json")
    made.seal.rename(secret)  # the training cannot reach the seal at all
    out = tmp_path / "scores.csv"
    done = subprocess.run(
        [sys.executable, "-c", TRAINING, str(made.folder), str(out)],
        capture_output=True,
        text=True,
        check=False,
        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    result = seal.judge_folder(made.folder, scores=out, seal=secret, digest=made.digest)
    assert result.verdict.outcome is Outcome.REFUTED
    assert result.guesses.correct == result.guesses.guesses


def test_hostile_files_are_refused_in_words(made, tmp_path):
    path, _ = scored(made)
    for name, content, words in (
        ("deep.jsonl", "[" * 100_000, "nested too deeply"),
        ("cell.csv", "id,score\n" + "a" * 200_000 + ",1\n", "field larger than field limit"),
        ("list.jsonl", '["a", 1]\n', "is no JSON object"),
        ("utf16.csv", "id,score\n".encode("utf-16"), "not UTF-8"),
        ("told.csv", "id,score,in_train\na,1,0\n", "in_train tells"),
    ):
        file = tmp_path / name
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(InvalidInputError, match=words):
            seal.judge_folder(made.folder, scores=file)
    with pytest.raises(InvalidInputError, match="a folder"):
        seal.judge_folder(made.folder, scores=tmp_path)
    edit(made.folder / "seal.json", lambda tree: tree.update(judged="x"))
    with pytest.raises(InvalidInputError, match="damaged"):
        seal.judge_folder(made.folder, scores=path)
    (made.folder / "manifest.json").write_text("[" * 100_000)
    with pytest.raises(InvalidInputError, match="nested too deeply"):
        seal.judge_folder(made.folder, scores=path)
