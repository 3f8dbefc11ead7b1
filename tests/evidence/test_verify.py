"""An honest bundle verifies; one changed value is found, however well the rest is made to fit."""

import json
import math

import evidence_functions as own
import numpy as np
import pytest
from evidence_bundles import INLINE, SETTINGS, members
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from scipy import stats

import coalmine
from coalmine.auditing import config
from coalmine.errors import InvalidInputError
from coalmine.evidence import again, archive
from coalmine.evidence.comparing import DIGITS, ROUNDING, differences
from coalmine.evidence.contents import Contents, Played
from coalmine.evidence.verification import Sampled
from coalmine.evidence.verifying import _page_differences
from coalmine.game import machine
from coalmine.store import BlockResult
from coalmine.store.listing import Origin

NAMED = {"train": own.bound, "score": own.score, "worlds": own.worlds, "control": own.half}


def check(found, name):
    return next(one for one in found.checks if one.name == name)


def test_an_honest_bundle_verifies(built_in):
    found = coalmine.verify(built_in, sample=32, seed=5)
    assert [one.words for one in found.checks if one.held != "passed"] == []
    assert (found.outcome, found.exit_code, str(found)) == ("verified", 0, "verified")
    assert found.sampled == Sampled(seed=5, trained=32, trainings=192)
    assert "32 to the bit" in check(found, "trained again").words
    assert json.loads(found.to_json())["sample"]["found"]["0.1"] == pytest.approx(found.sampled.found(changed=19))


def test_the_drawing_is_new_each_time_and_can_be_repeated(built_in):
    first, second = (coalmine.verify(built_in, sample=1) for _ in range(2))
    assert first.sampled.seed != second.sampled.seed
    assert coalmine.verify(built_in, sample=1, seed=first.sampled.seed) == first


def test_without_training_it_verifies_partly(built_in):
    found = coalmine.verify(built_in, sample=0)
    assert (found.outcome, found.exit_code) == ("partly verified", 3)
    assert "trained again" in found.in_words()


def test_an_own_training_is_repeated_only_where_its_code_is_named(own_bundle):
    found = coalmine.verify(own_bundle)
    assert found.exit_code == 3
    assert "holds no code" in check(found, "trained again").words
    assert all(one.held == "passed" for one in found.checks if one.name != "trained again")
    found = coalmine.verify(own_bundle, **NAMED, sample=16)
    assert found.outcome == "verified", found.to_json()
    assert "16 to the bit" in check(found, "trained again").words


def test_code_that_is_not_what_was_audited_is_not_trained(own_bundle):
    found = coalmine.verify(own_bundle, **{**NAMED, "train": own.other})
    assert found.exit_code == 3
    assert "is not what was audited, it differs in " in check(found, "trained again").words
    assert "train.values" in check(found, "trained again").words
    found = coalmine.verify(own_bundle, **{**NAMED, "control": None})
    assert "name the control too" in check(found, "trained again").words


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"train": own.bound}, "score is missing"),
        ({"score": own.score}, "train is missing"),
        ({"sample": -1}, "sample = -1"),
        ({"seed": 1.5}, "seed = 1.5"),
    ],
)
def test_wrong_arguments_are_refused(own_bundle, given, words):
    with pytest.raises(InvalidInputError, match=words):
        coalmine.verify(own_bundle, **given)


def test_an_audit_of_our_trainer_takes_no_code(built_in):
    with pytest.raises(InvalidInputError, match="train is not allowed"):
        coalmine.verify(built_in, train=own.bound)


def test_what_was_given_in_python_must_be_given_again(tmp_path):
    rng = np.random.default_rng(0)
    data = rng.normal(size=(40, 3)), np.arange(40) % 2
    tree = {**SETTINGS, "adversary": [{"name": "clipbkd"}], "audit": {"trials": 16}}
    result = coalmine.audit(config.parse(tree), data=data, store=tmp_path / "a.db", execution=INLINE)
    path = coalmine.bundle(result, store=tmp_path / "a.db", output=tmp_path / "given.zip")
    found = coalmine.verify(path)
    assert found.exit_code == 3
    assert "given data in Python" in check(found, "config and claim").words
    assert coalmine.verify(path, data=data, sample=8).outcome == "verified"
    found = coalmine.verify(path, data=(data[0] + 1e-3, data[1]), sample=8)
    assert found.exit_code == 1
    assert any("members[0].run" in line for line in found.differences)


def test_canaries_of_one_training_are_repeated_with_their_training(tmp_path):
    adversary = {"name": "one-run-white-box", "canaries": 40, "runs": 2}
    result = coalmine.audit(
        config.parse({**SETTINGS, "adversary": [adversary]}), store=tmp_path / "a.db", execution=INLINE
    )
    path = coalmine.bundle(result, store=tmp_path / "a.db", output=tmp_path / "one-run.zip")
    found = coalmine.verify(path, sample=2)
    assert found.outcome == "verified", found.to_json()
    assert found.sampled.trainings == 4  # two, and as many of the control


def test_several_scores_and_failures_come_back(tmp_path):
    scores = {"b": own.score, "a": abs}
    with pytest.raises(InvalidInputError):
        coalmine.audit_function(own.train, scores, worlds=own.worlds, claim_epsilon=3.0, store=tmp_path / "x.db")
    scores = {"b": own.score, "a": own.size}
    result = coalmine.audit_function(
        own.train, scores, worlds=own.worlds, claim_epsilon=3.0, trials=48, store=tmp_path / "a.db", execution=INLINE
    )
    path = coalmine.bundle(result, store=tmp_path / "a.db", output=tmp_path / "two.zip")
    assert len(result.adversaries) == 2
    assert sum(result.adversaries[0].failed) > 0
    found = coalmine.verify(path, train=own.train, score=scores, worlds=own.worlds, sample=48)
    assert found.outcome == "verified", found.to_json()


# ---- forgers ---------------------------------------------------------------------------------------------------


def _set(*path, value):
    def edit(tree):
        for key in path[:-1]:
            tree = tree[key]
        tree[path[-1]] = value(tree[path[-1]]) if callable(value) else value

    return edit


def _cell(row, column, value):
    def edit(rows):
        rows[row][column] = value(rows[row][column])

    return edit


FORGERIES = {
    "a score": ({"": _cell(5, 2, lambda text: repr(float(text) + 1.0))}, "bounds and verdict"),
    "a world": ({"": _cell(5, 1, lambda text: "01"[text == "0"])}, "worlds"),
    "a bound": (
        {archive.RESULT: _set("adversaries", 0, "bound", "epsilon", value=lambda one: one + 1e-7)},
        "bounds and verdict",
    ),
    "another bound": (
        {archive.RESULT: _set("adversaries", 1, "others", 0, "epsilon", value=lambda one: one * 1.001)},
        "bounds and verdict",
    ),
    "the verdict": ({archive.RESULT: _set("verdict", "outcome", value="consistent")}, "bounds and verdict"),
    "a reason": ({archive.RESULT: _set("verdict", "reasons", 0, value="all is well")}, "bounds and verdict"),
    "the confidence": (
        {archive.AUDIT: _set("audit", "config", "audit", "confidence", value=0.9)},
        "bounds and verdict",
    ),
    "the data": ({archive.AUDIT: _set("audit", "config", "data", "rows", value=61)}, "config and claim"),
    "the steps": ({archive.AUDIT: _set("audit", "config", "training", "steps", value=5)}, "config and claim"),
    "the seed": ({archive.AUDIT: _set("audit", "config", "audit", "seed", value=1)}, "runs"),
    "the claim": (
        {archive.AUDIT: _set("audit", "claim", "mechanism", "noise_multiplier", value=0.9)},
        "config and claim",
    ),
    "the promise": (
        {archive.AUDIT: _set("audit", "subject", "guarantee", "epsilon", value=lambda one: one / 2)},
        "config and claim",
    ),
    "a version": ({archive.AUDIT: _set("audit", "versions", "numpy", value="1.0.0")}, "bounds and verdict"),
    "an attack": (
        {archive.AUDIT: _set("audit", "members", 0, "attack", "copies", value=1)},
        "config and claim",
    ),
    "a page": ({archive.REPORT: lambda content: content.replace(b"inconclusive", b"consistent", 1)}, "report"),
    "a byte of a page": ({archive.REPORT: lambda content: content[:-1] + b" "}, "report"),
    "the text": ({archive.README: lambda content: content + b"Trust us.\n"}, "files"),
}


@pytest.mark.parametrize("what", FORGERIES)
def test_one_changed_value_is_found_with_and_without_new_sums(forge, built_in, what):
    changes, where = FORGERIES[what]
    found = coalmine.verify(forge(built_in, changes, manifest=False), sample=0)
    assert found.exit_code == 1
    assert check(found, "files").held == "differs"
    found = coalmine.verify(forge(built_in, changes), sample=0)
    assert found.exit_code == 1, found.to_json()
    assert check(found, where).held == "differs"
    assert check(found, where).differences


@pytest.mark.parametrize(
    "what", ["the data", "the steps", "the claim", "the promise", "an attack", "the seed", "a world"]
)
def test_the_same_where_all_that_follows_is_made_to_fit(forge, built_in, what):
    changes, where = FORGERIES[what]
    found = coalmine.verify(forge(built_in, changes, honest=True), sample=0)
    assert check(found, "bounds and verdict").held == "passed"
    assert check(found, "report").held == "passed"
    assert found.exit_code == 1
    assert check(found, where).held == "differs"


def test_a_version_that_is_made_to_fit_is_no_full_verification(forge, built_in):
    changes, _ = FORGERIES["a version"]
    found = coalmine.verify(forge(built_in, changes, honest=True), sample=1)
    assert found.exit_code == 3
    assert "numpy 1.0.0" in check(found, "versions").words


@pytest.mark.parametrize("name", ["certified by", "jax"])
def test_a_word_among_the_versions_is_no_full_verification(forge, built_in, name):
    def edit(tree):
        tree["audit"]["versions"][name] = "BSI"

    found = coalmine.verify(forge(built_in, {archive.AUDIT: edit}, honest=True), sample=1)
    assert found.exit_code == 3
    assert f"{name} BSI (none here)" in check(found, "versions").words


@pytest.mark.parametrize("given", [{"data": (np.zeros((4, 2)), np.arange(4) % 2)}, {"model": object()}])
def test_what_the_audit_was_not_given_is_refused(built_in, given):
    """It would be passed over, and the audit of other data verified in its name."""
    with pytest.raises(InvalidInputError, match="is not allowed: this audit was given none in Python"):
        coalmine.verify(built_in, **given, sample=1)


def test_a_score_that_all_is_made_to_fit_is_found_by_training(forge, built_in):
    run = Contents.from_files(members(built_in), where=built_in).record.members[0].run

    def lower(rows):
        rows[8][2] = repr(math.nextafter(float(rows[8][2]), 0.0))  # the smallest change there is

    forged = forge(built_in, {run: lower}, honest=True)
    assert coalmine.verify(forged, sample=0).exit_code == 3  # nothing else can tell
    found = coalmine.verify(forged, sample=192)
    assert found.exit_code == 1
    [line] = found.differences
    assert line.startswith("trial 7 of clipbkd (copies=2)")
    assert run[:12] in line


def test_scores_of_an_own_training_are_found_too(forge, own_bundle):
    run = Contents.from_files(members(own_bundle), where=own_bundle).record.members[0].run

    def fail(rows):
        row = next(one for one in rows[1:] if one[2])
        row[2] = ""  # it failed, says the forger

    forged = forge(own_bundle, {run: fail}, honest=True)
    found = coalmine.verify(forged, **NAMED, sample=128)
    assert found.exit_code == 1
    assert "nan in the bundle" in found.differences[0]


def test_an_order_of_the_worlds_that_is_made_up_is_found_by_the_rows(forge, tmp_path):
    """A row taken away, tested as if one were added: the claim would be refuted too easily."""
    worlds = coalmine.Worlds(world0=own.worlds.world1, world1=own.worlds.world0)
    claim = coalmine.DpSgd(sample_rate=0.5, noise_multiplier=2.0, steps=1)
    store = tmp_path / "s.db"
    result = coalmine.audit_function(
        own.half, own.score, worlds=worlds, claim_dpsgd=claim, trials=32, store=store, execution=INLINE
    )
    honest = coalmine.bundle(result, store=store, output=tmp_path / "b.zip")
    named = {"train": own.half, "score": own.score, "worlds": worlds}
    assert coalmine.verify(honest, **named).exit_code == 0

    def made_up(tree):
        tree["audit"]["config"]["added"] = True
        for member in tree["audit"]["members"]:
            member["attack"]["added"] = True

    forged = forge(honest, {archive.AUDIT: made_up}, honest=True)
    found = coalmine.verify(forged, **named)
    assert found.exit_code == 1
    assert "not world 0 with rows added" in found.differences[0]


@given(data=st.data())
@settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)
def test_any_changed_value_is_found(forge, built_in, data):
    """Whatever leaf is changed, and however: the bundle does not verify, though its sums fit."""
    edited = []
    name = data.draw(st.sampled_from([archive.AUDIT, archive.RESULT, "table"]))
    if name == "table":

        def edit(rows):
            row = rows[data.draw(st.integers(1, len(rows) - 1))]
            at = data.draw(st.integers(0, len(row) - 1))
            old, new = row[at], data.draw(st.sampled_from(["", "0", "1", "0.5", "-3.25", "1e300", "nan", "x"]))
            row[at] = new if new != old else "7"

        name = ""
    else:

        def edit(tree):
            leaves = list(_leaves(tree))
            holder, key, top = leaves[data.draw(st.integers(0, len(leaves) - 1))]
            edited.append(top)
            old = holder[key]
            others = [
                one for one in (old, None, True, 0, 1, -1, 2.5, "x", "infinity", [], {}) if repr(one) != repr(old)
            ]
            if isinstance(old, (int, float)) and not isinstance(old, bool):
                others.append(old + 1)
            holder[key] = data.draw(st.sampled_from(others))

    try:
        forged = forge(built_in, {name: edit})
        found = coalmine.verify(forged, sample=0)
    except InvalidInputError:
        return  # no bundle says such a thing
    event(f"{name or 'table'}: {', '.join(one.name for one in found.checks if one.held == 'differs')}")
    if found.exit_code == 3 and name == "":  # a score may move between its neighbours: nothing that it proves changes
        one, other = (Contents.from_files(members(path), where=path).result() for path in (built_in, forged))
        assert one.to_json() == other.to_json()
        return
    # Where and with what a trial was trained can only be said; sample = 0 leaves it at 3.
    assert found.exit_code == 1 or (name == archive.AUDIT and edited[0] in ("made", "runs")), found.to_json()


def _leaves(tree, top=None):
    """Every value of a tree that holds no other: what holds it, its key, and the key at the top."""
    for key, value in list(tree.items() if isinstance(tree, dict) else enumerate(tree)):
        if isinstance(value, (dict, list)) and value:
            yield from _leaves(value, top or key)
        else:
            yield tree, key, top or key


# ---- what a sample finds ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("trainings", "trained", "changed"), [(1000, 32, 100), (192, 32, 2), (50, 10, 45), (7, 7, 1)])
def test_the_probability_is_that_of_drawing_without_replacement(trainings, trained, changed):
    chance = Sampled(seed=0, trained=trained, trainings=trainings).found(changed=changed)
    exact = 1.0 - stats.hypergeom(trainings, changed, trained).pmf(0)
    assert chance == pytest.approx(exact, abs=1e-12)
    assert chance >= 1.0 - (1.0 - changed / trainings) ** trained - 1e-12


def test_the_drawing_finds_as_often_as_it_says(built_in):
    contents = Contents.from_files(members(built_in), where=built_in)
    units = again.drawn(contents, sample=10**6, seed=0)
    assert [unit.index for unit in units] == [*range(64)] * 3
    assert len({unit.run for unit in units}) == 3
    changed = set(units[::24])  # 8 of 192
    hits = sum(bool(changed & set(again.drawn(contents, sample=32, seed=seed))) for seed in range(400))
    chance = Sampled(seed=0, trained=32, trainings=192).found(changed=8)
    assert abs(hits / 400 - chance) < 5.0 * math.sqrt(chance * (1.0 - chance) / 400)  # fails by chance: below 1e-6


# ---- other machines --------------------------------------------------------------------------------------------


def test_other_versions_are_said_and_results_compared_to_a_tolerance(monkeypatch, built_in):
    here = machine.versions()
    monkeypatch.setattr(machine, "versions", lambda: {**here, "numpy": "9.9.9"})
    found = coalmine.verify(built_in, sample=8)
    assert found.exit_code == 3
    assert f"numpy {here['numpy']} (9.9.9 here)" in check(found, "versions").words
    assert "8 to the bit" in check(found, "trained again").words
    assert "to 1e-06" in check(found, "bounds and verdict").words


def _elsewhere(tree):
    """All of it was played on another instruction set, says the maker."""
    for one in tree["runs"].values():
        for origin in one["origins"]:
            origin["device"] = origin["device"].partition(",")[0] + ", VSX"


def test_bits_that_come_back_need_no_tolerance_whatever_machine_is_named(forge, built_in):
    found = coalmine.verify(forge(built_in, {archive.AUDIT: _elsewhere}, honest=True), sample=8)
    assert (found.exit_code, check(found, "trained again").held) == (0, "passed")
    assert "8 to the bit" in check(found, "trained again").words


@pytest.mark.parametrize(("off", "code"), [(1e-9, 0), (1.0, 1)])
def test_on_another_instruction_set_a_score_must_keep_its_place(forge, built_in, off, code):
    run = Contents.from_files(members(built_in), where=built_in).record.members[0].run

    def shift(rows):
        rows[8][2] = repr(float(rows[8][2]) * (1.0 + off))

    found = coalmine.verify(forge(built_in, {archive.AUDIT: _elsewhere, run: shift}, honest=True), sample=192)
    assert found.exit_code == code, found.to_json()
    if code:
        assert found.differences[0].startswith("trial 7 of clipbkd")
    else:
        assert "191 to the bit, 1 but for rounding" in check(found, "trained again").words
        assert "one score changed by so much that it leaves its place" in check(found, "trained again").words


ELSEWHERE = Origin(first=0, trials=8, device="own training, VSX", elapsed=1.0, versions=machine.versions())
SCORES = np.array([0.0, 1e-4, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0])


def _come_back(trial, found, *, origin=ELSEWHERE, columns=None):
    """One trial of eight against what it is trained again."""
    columns = columns or {}
    world = (np.arange(8) % 2).astype(np.int8)
    played = Played(
        identity={}, origins=(origin,), world=world, score=SCORES, columns={n: v for n, (v, _) in columns.items()}
    )
    result = BlockResult(
        trial=np.array([trial]),
        world=world[trial : trial + 1],
        score=np.array([found]),
        elapsed=1.0,
        device="own training, other",
        columns={name: np.array([value]) for name, (_, value) in columns.items()},
        failures={trial: "failed"} if math.isnan(found) else {},
    )
    return again._held(again.Unit(run="r", label="one", index=trial), played, result, alike=True)


@pytest.mark.parametrize(
    ("trial", "found", "how"),
    [
        (4, 3.0, "exactly"),
        (4, 3.0005, "nearly"),  # a quarter of the scores lies within 1.0 of it: rounding is up to 1e-3, and 3e-6 for 3
        (4, 3.0015, "lost"),
        (1, 1e-4 + 5e-8, "nearly"),
        (1, 1e-4 + 4e-5, "lost"),  # half-way to 0.0, in the other world, is 5e-5, but no rounding is as large as that
        (1, np.nan, "lost"),
    ],
)
def test_the_room_is_the_way_to_the_next_score_of_the_other_world(trial, found, how):
    assert getattr(_come_back(trial, found), how) == 1


def test_what_rounding_may_have_moved_past_another_score_proves_nothing(monkeypatch):
    monkeypatch.setattr(again, "ROUNDED", 2.0)  # as if rounding were that large: its neighbour is the limit
    assert _come_back(1, 1e-4 + 4e-5).nearly == 1
    found = _come_back(1, 1e-4 + 6e-5)
    assert (found.nearly, found.lost, len(found.unsure)) == (0, 0, 1)
    assert "score 0.0001 in the bundle" in found.unsure[0]


def test_an_accuracy_that_is_another_elsewhere_proves_nothing():
    accuracy = {"accuracy": (np.full(8, 0.5), 0.51)}
    assert len(_come_back(4, 3.0, columns=accuracy).unsure) == 1


def test_scores_keep_their_order_where_each_keeps_its_place():
    """The proof in numbers: whatever is chosen within the rooms, the worlds follow each other in the same order."""
    draw = np.random.default_rng(1)
    for _ in range(200):
        scores = draw.normal(size=40) * draw.choice([1e-9, 1.0], size=40)
        world = draw.integers(2, size=40).astype(np.int8)
        kept, rounded = again._rooms(scores, world, slice(0, 40))
        assert np.all(kept <= rounded)
        monkey = scores + np.where(draw.random(40) < 0.5, -1.0, 1.0) * kept * 0.999
        assert world[np.argsort(scores)].tolist() == world[np.argsort(monkey)].tolist()


@pytest.mark.parametrize("score", [own.two_heaps, own.many_heaps])
def test_a_score_that_spreads_itself_does_not_widen_what_may_be_changed(forge, tmp_path, score):
    """Every score is forged by far less than the spread of all, and another instruction set named: never verified."""
    claim = coalmine.DpSgd(sample_rate=1.0, noise_multiplier=2.0, steps=1)
    result = coalmine.audit_function(
        own.loud, score, worlds=own.worlds, claim_dpsgd=claim, trials=128, store=tmp_path / "s.db", execution=INLINE
    )
    honest = coalmine.bundle(result, store=tmp_path / "s.db", output=tmp_path / "b.zip")
    draw = np.random.default_rng(0)

    def shift(rows):
        for row in rows[1:]:
            row[2] = repr(float(row[2]) - 0.9 * int(row[1]) + float(draw.normal()) * 0.3)

    def elsewhere(tree):
        _elsewhere(tree)
        tree["made"]["instruction_set"] = "x86_64 VSX"

    forged = forge(honest, {archive.AUDIT: elsewhere, result.strongest.run: shift}, honest=True)
    found = coalmine.verify(forged, train=own.loud, score=score, worlds=own.worlds, sample=32)
    assert found.exit_code in (1, 3), found.to_json()
    assert "probability" not in check(found, "trained again").words


def test_noise_of_another_kind_of_device_is_not_compared(forge, built_in):
    def elsewhere(tree):
        for one in tree["runs"].values():
            for origin in one["origins"]:
                origin["device"] = "cpu float16, AVX2"

    found = coalmine.verify(forge(built_in, {archive.AUDIT: elsewhere}, honest=True), sample=4)
    assert found.exit_code == 3
    assert "draws other noise" in check(found, "trained again").words


@pytest.mark.parametrize(
    ("said", "found", "within", "lines"),
    [
        ({"a": 1.0}, {"a": 1.0 + 1e-9}, 0.0, 1),
        ({"a": 1.0}, {"a": 1.0 + 1e-12}, ROUNDING, 0),  # another number of threads
        ({"a": 1.0}, {"a": 1.0 + 1e-8}, ROUNDING, 1),
        ({"a": 1.0}, {"a": 1.0 + 1e-9}, DIGITS, 0),
        ({"a": 1.0}, {"a": 1.001}, DIGITS, 1),
        ({"a": 1}, {"a": True}, 0.0, 1),
        ({"a": 1}, {"a": 1.0}, ROUNDING, 1),
        ({"a": [1, 2]}, {"a": [1]}, 0.0, 1),
        ({"a": None}, {}, 0.0, 1),
        ({}, {"a": "x"}, 0.0, 1),
    ],
)
def test_differences_are_named(said, found, within, lines):
    named = differences(said, found, within=within)
    assert len(named) == lines
    assert all(line.startswith("a: ") for line in named)


def test_long_numbers_of_a_page_may_differ_by_rounding_and_nothing_else_may():
    page = '<p>at least 2.71 sure</p>{"value":0.30556600344111283}'
    assert _page_differences(page, page.replace("1283", "1345")) == []
    [line] = _page_differences(page, page.replace("0.3055", "0.3056"))
    assert "0.3055" in line
    [line] = _page_differences(page.replace("2.71", "1.71"), page)
    assert line.startswith("report.html: '<p>at least 1.71 sure</p>")
    assert "in the bundle, '<p>at least 2.71 sure" in line
    assert _page_differences(page + " ", page)


def test_what_the_bundle_says_is_its_own_verdict(forge, built_in):
    changes, _ = FORGERIES["the verdict"]
    assert coalmine.verify(forge(built_in, changes), sample=0).says == "consistent"
    assert coalmine.verify(built_in, sample=0).says != "consistent"
