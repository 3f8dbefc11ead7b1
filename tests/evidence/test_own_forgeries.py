"""What is said of an own training is made again from its config and runs, and named code must have its role."""

import copy
import dataclasses
import json

import evidence_functions as own
import pytest
from evidence_bundles import members

import coalmine
from coalmine.cli import main
from coalmine.errors import InvalidInputError
from coalmine.evidence import archive
from coalmine.evidence.comparing import differences
from coalmine.evidence.contents import Contents
from coalmine.evidence.own import record_again
from coalmine.integrations.functions import fingerprint
from coalmine.report import html, summary

NAMED = {"train": own.bound, "score": own.score, "worlds": own.worlds, "control": own.half}
SWAPPED = {**NAMED, "train": own.half, "control": own.bound}


def question(found):
    return next(one for one in found.checks if one.name == "config and claim")


def swap(tree):
    """The control in the place of the training, and all that is called after them."""
    audit = tree["audit"]
    first, twin = audit["members"][0], audit["members"][0]["control"]
    first["run"], twin["run"] = twin["run"], first["run"]
    names = [tree["runs"][one["run"]]["identity"]["adversary"]["train"] for one in (first, twin)]
    audit["config"]["train"] = audit["subject"]["name"] = audit["subject"]["details"]["train"] = names[0]
    audit["subject"]["details"]["control"] = names[1]


# ---- which code had which role ---------------------------------------------------------------------------------


def test_the_control_named_as_the_training_does_not_verify(own_bundle):
    found = coalmine.verify(own_bundle, **SWAPPED, sample=4)
    assert found.exit_code == 1
    assert [line.partition(":")[0] for line in question(found).differences] == ["train", "control"]
    assert "evidence_functions:half is the control in the bundle" in question(found).differences[0]


def test_runs_whose_roles_were_swapped_do_not_verify_for_who_knows_the_training(forge, own_bundle):
    forged = forge(own_bundle, {archive.AUDIT: swap}, honest=True)
    found = coalmine.verify(forged, **NAMED, sample=4)
    assert found.exit_code == 1
    assert question(found).held == "differs"
    # Named as the bundle has them they are what it says, and it says of whom it speaks.
    found = coalmine.verify(forged, **SWAPPED, sample=4)
    assert found.outcome == "verified"
    assert (found.audited.train, found.audited.named) == ("evidence_functions:half", True)
    assert (found.control.train, found.control.named) == ("evidence_functions:train(token=<str>)", True)


def test_a_control_of_an_audit_without_one_does_not_verify(forge, own_bundle):
    def without(tree):
        twin = tree["audit"]["members"][0].pop("control")
        tree["audit"]["members"][0]["control"] = None
        tree["audit"]["subject"]["details"].pop("control")
        tree["runs"].pop(twin["run"])

    twin = Contents.from_files(members(own_bundle), where=own_bundle).record.members[0].control.run
    files = members(own_bundle)
    tree = json.loads(files[archive.AUDIT])
    without(tree)
    files.pop(archive.table_name(twin))
    files[archive.AUDIT] = archive.json_bytes(tree)
    result = Contents.from_files(files, where=own_bundle).result()
    files |= {
        archive.RESULT: archive.json_bytes(result.to_dict()),
        archive.REPORT: f"<html>{result.to_json()}</html>".encode(),
    }
    path = own_bundle.with_name("alone.zip")
    path.write_bytes(archive.pack(files))
    found = coalmine.verify(path, **NAMED, sample=2)
    assert found.exit_code == 1
    assert "this audit has no control" in question(found).differences[0]
    assert coalmine.verify(path, **{**NAMED, "control": None}, sample=2).outcome == "verified"


def test_another_control_than_was_played_is_no_full_verification(own_bundle):
    found = coalmine.verify(own_bundle, **{**NAMED, "control": own.other}, sample=4)
    assert found.exit_code == 3
    assert "is not the control that was played" in found.checks[-1].words


# ---- what is said of it ----------------------------------------------------------------------------------------


def _update(*path, **values):
    def edit(tree):
        for key in ("audit", *path):
            tree = tree[key]
        tree.update(values)

    return edit


FIRST = ("members", 0, "attack")
GUARANTEE = {"epsilon": 0.1, "delta": 1e-5, "analysis": "pld", "relation": "add_remove", "assumptions": ["seen"]}
RAN = {"sample_rate": 0.001, "noise_multiplier": 50.0, "steps": 10, "sampling": "poisson", "relation": "add_remove"}
LIES = {
    "a guarantee": _update("subject", guarantee=GUARANTEE),
    "noise": _update("subject", ran=RAN),
    "a name": _update("subject", name="production:train"),
    "a name in the config": _update("config", train="production:train"),
    "data": _update("subject", data_note="all customers of 2025"),
    "a certificate": _update("subject", "details", **{"certified by": "BSI"}),
    "claimed noise in words": _update("subject", "details", **{"claimed noise multiplier": 20.0}),
    "an attack": _update(*FIRST, name="strongest known attack"),
    "no training": _update(*FIRST, trained=False),
    "chosen data": _update(*FIRST, chosen_data=True),
    "a note": _update(*FIRST, notes=["this attack loses nothing"]),
    "a view": _update(*FIRST, reads_as="final_model"),
    "a share of noise": _update(*FIRST, control=0.1),
    "powers": _update(*FIRST, powers={"access": "all"}),
    "scores by name": _update(*FIRST, several=["score"]),
}


@pytest.mark.parametrize("what", LIES)
def test_invented_facts_do_not_verify(forge, own_bundle, what):
    forged = forge(own_bundle, {archive.AUDIT: LIES[what]}, honest=True)
    found = coalmine.verify(forged, **NAMED, sample=2)
    assert question(found).held == "differs", found.to_json()
    assert found.exit_code == 1


def _leaves(tree, path=()):
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        if isinstance(value, (dict, list)) and value:
            yield from _leaves(value, (*path, key))
        else:
            yield (*path, key)


ASKED = {("config", "audit"), ("config", "mechanism"), ("config", "added"), ("claim",)}
"""What is asked, and what is claimed: nobody can say it but the maker, and the verdict is about it."""


def test_no_leaf_of_the_record_is_taken_on_trust(own_bundle):
    """Each value, changed in whatever way a record can be read: it is not what is made again."""
    known = Contents.from_files(members(own_bundle), where=own_bundle)
    tree = known.record.to_dict()
    found, wrong = record_again(known)
    assert wrong == []
    assert differences(tree, {**found.to_dict(), "versions": tree["versions"]}, within=0.0) == []
    tried = 0
    for path in _leaves(tree):
        if path[0] == "versions" or any(path[: len(one)] == one for one in ASKED) or path[-1] == "run":
            continue
        for value in (None, True, 0, 2, 0.5, "x", "replace", "final_model", ["x"], {"x": "y"}):
            changed = copy.deepcopy(tree)
            place = changed
            for key in path[:-1]:
                place = place[key]
            if repr(place[path[-1]]) == repr(value):
                continue
            place[path[-1]] = value
            try:
                record = type(known.record).from_dict(changed)
                if record.to_dict() != changed:
                    continue  # refused as it is read
                found, wrong = record_again(dataclasses.replace(known, record=record))
            except (InvalidInputError, ValueError, TypeError, LookupError, AttributeError):
                continue
            tried += 1
            same = {**found.to_dict(), "versions": tree["versions"]}
            assert wrong or differences(record.to_dict(), same, within=0.0), (path, value)
    assert tried > 100


def test_a_control_on_other_data_does_not_verify(own_bundle):
    known = Contents.from_files(members(own_bundle), where=own_bundle)
    first = known.record.members[0]
    twin = known.runs[first.control.run]
    other = {**twin.identity, "data": {**twin.identity["data"], "content": ["0" * 64] * 2}}
    runs = {first.run: known.runs[first.run], fingerprint(other): dataclasses.replace(twin, identity=other)}
    member = dataclasses.replace(first, control=dataclasses.replace(first.control, run=fingerprint(other)))
    record = dataclasses.replace(known.record, members=(member,))
    _, wrong = record_again(dataclasses.replace(known, record=record, runs=runs))
    assert "the control differs from the training in data.content" in wrong[0]


def test_a_run_without_an_identity_is_refused(forge, own_bundle):
    def edit(tree):
        for one in tree["runs"].values():
            one["identity"] = {"seed": 0}

    with pytest.raises(InvalidInputError, match="does not describe the audit of an own training"):
        coalmine.verify(forge(own_bundle, {archive.AUDIT: edit}), sample=0)


def test_a_verification_says_which_code_it_speaks_of_and_what_nobody_checked(own_bundle, built_in, capsys):
    known = Contents.from_files(members(own_bundle), where=own_bundle)
    first = known.record.members[0]
    for named in (True, False):
        found = coalmine.verify(own_bundle, **(NAMED if named else {}), sample=2)
        for said, one in ((found.audited, first), (found.control, first.control)):
            identity = known.runs[one.run].identity
            assert (said.train, said.run, said.named) == (identity["train"]["function"], one.run, named)
            assert said.code == fingerprint(identity["train"])
        assert found.to_dict()["control"]["train"] == "evidence_functions:half"
        assert set(found.unverified) == {"date", "seconds", "devices", "instruction set"}
    main(["verify", str(own_bundle)])
    out = " ".join(capsys.readouterr().out.split())
    assert "Audited: evidence_functions:train(token=<str>), code " in out
    assert "Its control: evidence_functions:half, code " in out
    assert "The maker's own words, unverified: date " in out
    found = coalmine.verify(built_in, sample=0)
    assert (found.audited, found.control) == (None, None)
    assert found.unverified["name"] == "the small one"


def test_the_command_tells_the_roles_apart(own_bundle, capsys):
    words = ["--train", "evidence_functions:half", "--score", "evidence_functions:score"]
    words += ["--control-train", "evidence_functions:bound", "--sample", "2"]
    assert main(["verify", str(own_bundle), *words]) == 1
    assert "is the control in the bundle" in " ".join(capsys.readouterr().out.split())


def test_a_page_says_which_code_was_audited_and_which_was_the_control(own_bundle):
    known = Contents.from_files(members(own_bundle), where=own_bundle)
    first, result = known.record.members[0], known.result()
    assert html._runs(result) == [
        ("own training, audited: evidence_functions:train(token=<str>)", first.run),
        ("own training, control: evidence_functions:half", first.control.run),
    ]
    assert "beside its control evidence_functions:half;" in summary.subject(result)
