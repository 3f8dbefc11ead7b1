"""Files that no bundle is: each is refused with one line, and nothing of it is executed, unpacked or believed."""

import hashlib
import io
import json
import stat
import struct
import zipfile

import numpy as np
import pytest
from evidence_bundles import members

import coalmine
from coalmine.cli import main
from coalmine.errors import InvalidInputError
from coalmine.evidence import archive


def written(path, files, *, manifest=True, twice=None):
    """A zip of these members, without a thought."""
    files = dict(files)
    if manifest:
        tree = {"format": archive.FORMAT, "version": archive.VERSION, "files": {}}
        files = {archive.MANIFEST: archive.json_bytes(tree), **files}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, content in files.items():
            bundle.writestr(name, content)
        if twice:
            with pytest.warns(UserWarning, match="Duplicate"):
                bundle.writestr(twice, files[twice])
    return path


def replaced(name, content):
    return lambda files: {**files, name: content}


AUDIT, RESULT = archive.AUDIT, archive.RESULT
FILES = {
    "a path that leads out": (lambda files: {**files, "../../evil.txt": b"x"}, "does not belong into a bundle"),
    "an absolute path": (lambda files: {**files, "/etc/cron.d/evil": b"x"}, "does not belong into a bundle"),
    "a path of Windows": (lambda files: {**files, "trials\\..\\evil": b"x"}, "does not belong into a bundle"),
    "a folder": (lambda files: {**files, "trials/": b""}, "does not belong into a bundle"),
    "a pickle": (lambda files: {**files, "model.pkl": b"x"}, "does not belong into a bundle"),
    "no result": (lambda files: {k: v for k, v in files.items() if k != RESULT}, "result.json is missing"),
    "no report": (lambda files: {k: v for k, v in files.items() if k != archive.REPORT}, "report.html is missing"),
    "no trials": (lambda files: {k: v for k, v in files.items() if not k.startswith("t")}, "trials of other runs"),
    "trials of nobody": (lambda files: {**files, f"trials/{'0' * 64}.csv": b"x"}, "trials of other runs"),
    "no JSON": (replaced(RESULT, b"import os"), "result.json cannot be read"),
    "a list": (replaced(RESULT, b"[]"), "is not an object"),
    "no text": (replaced(RESULT, b"\xff\xfe{}"), "result.json cannot be read"),
    "NaN": (replaced(RESULT, b'{"a": NaN}'), "NaN is no number"),
    "infinity": (replaced(RESULT, b'{"a": -Infinity}'), "is no number"),
    "a huge number": (replaced(RESULT, b'{"a": 1e999}'), "too large for a number"),
    "a long number": (replaced(RESULT, b'{"a": ' + b"9" * 5000 + b"}"), "too large for a number"),
    "a key twice": (replaced(RESULT, b'{"a": 1, "a": 2}'), "a key stands twice"),
    "deep JSON": (replaced(RESULT, b'{"a": ' + b"[" * 50 + b"]" * 50 + b"}"), "nested too deeply"),
    "very deep JSON": (replaced(RESULT, b'{"a": ' * 200_000), "nested too deeply"),
    "an empty audit": (replaced(AUDIT, b"{}"), "does not describe an audit"),
    "a bomb of trials": (lambda files: {**files, f"trials/{'0' * 64}.csv": b"0" * (2**26 + 1)}, "67,108,864 bytes"),
    "a bomb": (replaced(RESULT, b" " * (2**27 + 1)), "too large"),
}


@pytest.mark.parametrize("what", FILES)
def test_a_malformed_bundle_is_refused(built_in, tmp_path, capsys, what):
    change, words = FILES[what]
    path = written(tmp_path / "bad.zip", change(members(built_in)))
    assert main(["verify", str(path)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert words in err
    assert "Traceback" not in err
    assert sorted(one.name for one in tmp_path.iterdir()) == ["bad.zip"]


def _deep(tree, *path, value):
    for key in path[:-1]:
        tree = tree[key]
    tree[path[-1]] = value


VALUES = {
    "an unknown key": (("audit", "extra"), 1),
    "a run of another name": (("audit", "members", 0, "run"), "../../x"),
    "a negative number of trials": (("audit", "members", 0, "wanted"), -5),
    "more trials than there are": (("audit", "members", 0, "wanted"), 10**7),
    "a text for a number": (("audit", "members", 0, "attack", "copies"), "two"),
    "no copies": (("audit", "members", 0, "attack", "copies"), 0),
    "a negative number of trainings": (("audit", "members", 0, "attack", "runs"), -1),
    "no relation": (("audit", "members", 0, "attack", "relation"), "none"),
    "no members": (("audit", "members"), []),
    "a list for a table": (("audit", "subject"), []),
    "an unknown option": (("audit", "config", "training", "execute"), "rm -rf /"),
    "a δ of two": (("audit", "config", "audit", "delta"), 2.0),
    "noise without end": (("audit", "claim", "mechanism", "noise_multiplier"), 1e300),
    "a time before 1970": (("created",), -1),
    "a time after all others": (("created",), 1e25),
    "a name that a terminal obeys": (("name",), "\x1b[2J"),
    "runs in a list": (("runs",), []),
}


@pytest.mark.parametrize("what", VALUES)
def test_values_that_no_audit_has_are_refused(built_in, tmp_path, capsys, what):
    path, value = VALUES[what]
    files = members(built_in)
    tree = json.loads(files[AUDIT])
    _deep(tree, *path, value=value)
    bad = tmp_path / "bad.zip"
    bad.write_bytes(archive.pack({**files, AUDIT: archive.json_bytes(tree)}))
    assert main(["verify", str(bad)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "bundle" in err


TABLES = {
    "no number": ("x", "could not convert"),
    "a number in another spelling": ("1_0.0", "not how a number is written"),
    "infinity": ("inf", "infinite"),
    "NaN": ("nan", "not how a number is written"),
    "a huge number": ("1" + "0" * 400, "not how a number is written"),
}


@pytest.mark.parametrize("what", TABLES)
def test_tables_that_cannot_be_read_are_refused(built_in, tmp_path, what):
    text, words = TABLES[what]
    files = members(built_in)
    name = next(one for one in files if one.startswith("trials/"))
    lines = files[name].decode().splitlines()
    lines[3] = ",".join([*lines[3].split(",")[:2], text, *lines[3].split(",")[3:]])
    bad = tmp_path / "bad.zip"
    bad.write_bytes(archive.pack({**files, name: "\n".join(lines).encode()}))
    with pytest.raises(InvalidInputError, match=words):
        coalmine.verify(bad)


def test_a_member_that_is_there_twice_is_refused(built_in, tmp_path):
    path = written(tmp_path / "twice.zip", members(built_in), twice=RESULT)
    with pytest.raises(InvalidInputError, match=r"result\.json is there twice"):
        coalmine.verify(path)


@pytest.mark.parametrize("size", [0, 2**40])
def test_a_size_that_is_a_lie_does_not_help(built_in, tmp_path, size):
    content = bytearray(built_in.read_bytes())
    at = content.index(b"PK\x01\x02")  # the first entry of the directory, with the size it claims
    struct.pack_into("<L", content, at + 24, size % 2**32)
    path = tmp_path / "lie.zip"
    path.write_bytes(bytes(content))
    with pytest.raises(InvalidInputError):
        coalmine.verify(path)


@pytest.mark.parametrize("flag", [1, 0x41])
def test_an_encrypted_member_is_refused(built_in, tmp_path, flag):
    content = bytearray(built_in.read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= flag
    path = tmp_path / "locked.zip"
    path.write_bytes(bytes(content))
    with pytest.raises(InvalidInputError, match="encrypted"):
        coalmine.verify(path)


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFDIR, stat.S_IFCHR, stat.S_IFIFO])
def test_a_member_that_is_no_plain_file_is_refused(built_in, tmp_path, kind):
    path = tmp_path / "link.zip"
    with zipfile.ZipFile(built_in) as source, zipfile.ZipFile(path, "w") as target:
        for member in source.infolist():
            content = source.read(member)
            member.external_attr = (kind | 0o777 if member.filename == RESULT else stat.S_IFREG | 0o644) << 16
            target.writestr(member, content)
    with pytest.raises(InvalidInputError, match=r"result\.json is not a plain file"):
        coalmine.verify(path)


def test_many_members_are_refused_before_they_are_read(tmp_path):
    path = written(tmp_path / "many.zip", {f"trials/{number:064x}.csv": b"" for number in range(1001)})
    with pytest.raises(InvalidInputError, match="1002 members"):
        coalmine.verify(path)


@pytest.mark.parametrize("content", [b"", b"PK\x05\x06", b"not a zip", b"PK\x03\x04" + b"\0" * 100])
def test_what_is_no_zip_is_refused(tmp_path, content):
    path = tmp_path / "no.zip"
    path.write_bytes(content)
    with pytest.raises(InvalidInputError, match="cannot be read"):
        coalmine.verify(path)


def test_other_formats_and_folders_are_refused(tmp_path):
    for tree, words in (({"format": "x"}, "does not say"), ({"format": archive.FORMAT, "version": 2}, "version 2")):
        files = dict.fromkeys((archive.AUDIT, archive.RESULT, archive.REPORT, archive.README), b"{}")
        path = written(tmp_path / "other.zip", {archive.MANIFEST: archive.json_bytes(tree), **files}, manifest=False)
        with pytest.raises(InvalidInputError, match=words):
            coalmine.verify(path)
    with pytest.raises(InvalidInputError, match="this is a folder"):
        coalmine.verify(tmp_path)


def test_any_flipped_byte_is_refused_or_found(built_in, tmp_path):
    content = built_in.read_bytes()
    draw = np.random.default_rng(3)
    path = tmp_path / "flipped.zip"
    same = 0
    for at in draw.choice(len(content), size=150, replace=False).tolist():
        damaged = bytearray(content)
        damaged[at] ^= 1 << int(draw.integers(8))
        path.write_bytes(bytes(damaged))
        try:
            files, _ = archive.unpack(path)
        except InvalidInputError:
            continue
        # A date or a permission in the zip's own directory: nothing that a bundle says.
        assert files == members(built_in)
        same += 1
    assert same < 30


def test_hostile_text_is_never_loaded_as_code(built_in, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text("raise SystemExit('executed')")
    files = members(built_in)
    tree = json.loads(files[AUDIT])
    tree["audit"]["config"]["adversary"][0]["name"] = "evil:train"
    (tmp_path / "bad.zip").write_bytes(archive.pack({**files, AUDIT: archive.json_bytes(tree)}))
    assert main(["verify", "bad.zip", "--sample", "0"]) in (1, 2)
    assert "executed" not in "".join(capsys.readouterr())


def test_the_command_says_it_in_80_columns_and_as_one_object(built_in, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["verify", str(built_in), "--sample", "3", "--seed", "1"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith("Verified: every check passed.\n")
    assert max(map(len, out.splitlines())) <= 80
    assert main(["verify", str(built_in), "--sample", "3", "--seed", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["outcome"] == "verified"
    assert found["sample"]["seed"] == 1
    page = tmp_path / "mine.html"
    assert main(["verify", str(built_in), "--sample", "0", "--report", str(page)]) == 3
    assert page.read_bytes() == members(built_in)[archive.REPORT]
    assert f"Report: {page}" in capsys.readouterr().out.replace("\n", "") or page.exists()


def test_the_command_writes_and_checks_an_own_training(own_store, capsys, tmp_path, monkeypatch):
    store, result = own_store
    target = tmp_path / "own.zip"
    assert main(["bundle", result.audit[:10], "--store", str(store), "-o", str(target)]) == 0
    assert "coalmine verify" in capsys.readouterr().out
    assert main(["bundle", result.audit[:10], "--store", str(store), "-o", str(tmp_path / "2.zip"), "--json"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert written["sha256"] == hashlib.sha256((tmp_path / "2.zip").read_bytes()).hexdigest()
    assert written["bytes"] == (tmp_path / "2.zip").stat().st_size
    assert main(["verify", str(target)]) == 3
    words = ["--train", "evidence_functions:bound", "--score", "evidence_functions:score"]
    words += ["--control-train", "evidence_functions:half", "--sample", "4"]
    assert main(["verify", str(target), *words]) == 0
    assert main(["verify", str(target), "--score", "evidence_functions:score"]) == 2
    assert "--score is not allowed without train" in capsys.readouterr().err
    assert main(["bundle", "nobody", "--store", str(store)]) == 2


def test_reading_a_bundle_takes_a_stream_no_larger_than_it_may_be(tmp_path):
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as bundle:
        bundle.writestr(archive.MANIFEST, b"0" * 2**22)
    path = tmp_path / "bomb.zip"
    path.write_bytes(target.getvalue())
    assert path.stat().st_size < 10_000
    with pytest.raises(InvalidInputError, match=r"MANIFEST\.json is too large: expected at most 1,048,576 bytes"):
        coalmine.verify(path)


@pytest.mark.parametrize("around", [(b"#!/bin/sh\n", b""), (b"", b"junk"), (b"PK\x03\x04", b"")])
def test_bytes_around_the_zip_are_refused(tmp_path, built_in, around):
    """Python's zipfile passes over them; a shell or another program would not."""
    path = tmp_path / "around.zip"
    path.write_bytes(around[0] + built_in.read_bytes() + around[1])
    with pytest.raises(InvalidInputError, match=r"begin as a zip|before or after the zip"):
        coalmine.verify(path)


def _in_audit(*path, value):
    def change(tree):
        run = next(iter(tree["runs"]))
        _deep(tree, *(run if key == "RUN" else key for key in path), value=value)

    return change


MAKERS = {
    "an unknown key of made": (("made", "auditor"), "certified by all", "made has the key 'auditor'"),
    "a text for a code": (("made", "code"), "this audit is certified", "made.code"),
    "a text for an instruction set": (("made", "instruction_set"), "certified by all of us", "made.instruction_set"),
    "a text for a version": (("made", "versions", "altair"), "5 (certified)", "made.versions.altair"),
    "versions that are none": (("made", "versions"), [], "made.versions"),
    "an unknown key of an origin": (
        ("runs", "RUN", "origins", 0, "certified"),
        "yes",
        "origins[0] has the key 'certified'",
    ),
    "a device that a terminal obeys": (("runs", "RUN", "origins", 0, "device"), "cpu\x1b[2J", "origins[0].device"),
    "a device that is a letter": (("runs", "RUN", "origins", 0, "device"), 50 * "long ", "origins[0].device"),
    "an unknown key of a run": (("runs", "RUN", "certified"), "yes", "has the key 'certified'"),
    "no origins": (("runs", "RUN", "origins"), {}, "where its trials come from"),
}


@pytest.mark.parametrize("what", MAKERS)
def test_there_is_no_room_for_texts_of_the_maker(built_in, forge, what):
    path, value, words = MAKERS[what]
    with pytest.raises(InvalidInputError) as error:
        coalmine.verify(forge(built_in, {AUDIT: _in_audit(*path, value=value)}), sample=0)
    assert words in str(error.value)
    assert "audit.json" in str(error.value)
    assert "__init__" not in str(error.value)


def test_a_device_and_an_instruction_set_are_said_to_be_the_makers_words(built_in, forge, capsys):
    changes = {AUDIT: _in_audit("made", "instruction_set", value="x86_64 quantum")}
    assert main(["verify", str(forge(built_in, changes)), "--sample", "0"]) == 3
    out = " ".join(capsys.readouterr().out.split())
    assert "unverified: " in out
    assert "instruction set x86_64 quantum" in out
    changes = {AUDIT: _in_audit("runs", "RUN", "origins", 0, "device", value="cpu of the regulator")}
    found = coalmine.verify(forge(built_in, changes), sample=0)
    assert "cpu of the regulator" in found.unverified["devices"]


def test_a_key_of_the_manifest_that_none_has_is_refused(built_in, tmp_path):
    files = members(built_in)
    manifest = {"format": archive.FORMAT, "version": archive.VERSION, "files": archive.sums(files), "by": "a regulator"}
    path = written(tmp_path / "bad.zip", {archive.MANIFEST: archive.json_bytes(manifest), **files}, manifest=False)
    with pytest.raises(InvalidInputError, match=r"MANIFEST\.json has the key 'by'"):
        coalmine.verify(path)


def _zip(files, *, comment=b"", extra=b"", how=zipfile.ZIP_DEFLATED):
    """A bundle's files with a thing in the zip that no bundle has."""
    target = io.BytesIO()
    manifest = {"format": archive.FORMAT, "version": archive.VERSION, "files": archive.sums(files)}
    with zipfile.ZipFile(target, "w") as bundle:
        for name, content in [(archive.MANIFEST, archive.json_bytes(manifest)), *files.items()]:
            member = zipfile.ZipInfo(name)
            member.compress_type, member.comment, member.extra = how, comment, extra
            bundle.writestr(member, content)
    return target.getvalue()


def _moved(content, at, hidden, *, inside=b""):
    """The zip with bytes put in: offsets after them are moved, so that every reader of zips is content."""
    end = struct.Struct("<4s4H2LH")
    mark, *numbers, size, start, comment = end.unpack(content[-end.size :])
    listed = bytearray(content[start : start + size])
    place = 0
    while place < size:
        names = struct.unpack_from("<3H", listed, place + 28)
        (offset,) = struct.unpack_from("<L", listed, place + 42)
        if offset >= at:
            struct.pack_into("<L", listed, place + 42, offset + len(hidden))
        if inside and listed[place + 46 : place + 46 + names[0]] == inside:
            (packed,) = struct.unpack_from("<L", listed, place + 20)
            struct.pack_into("<L", listed, place + 20, packed + len(hidden))
        place += 46 + sum(names)
    ending = end.pack(mark, *numbers, size, start + len(hidden), comment)
    return content[:at] + hidden + content[at:start] + bytes(listed) + ending


def _places(content):
    """Where the second member and the list of all members begin."""
    with zipfile.ZipFile(io.BytesIO(content)) as bundle:
        return bundle.infolist()[1].header_offset, bundle.start_dir


HIDDEN = {
    "a comment": (lambda files: _zip(files, comment=b"certified"), "a comment or further fields"),
    "further fields": (lambda files: _zip(files, extra=b"\xfe\xca\x04\x00abcd"), "a comment or further fields"),
    "another compression": (lambda files: _zip(files, how=zipfile.ZIP_LZMA), "not compressed as a bundle is"),
    "no compression": (lambda files: _zip(files, how=zipfile.ZIP_STORED), "not compressed as a bundle is"),
    "bytes between two members": (lambda files: _between(_zip(files), 0), "belong to no file"),
    "bytes before the list of members": (lambda files: _between(_zip(files), 1), "that belong to none"),
    "bytes inside a member, after its end": (lambda files: _inside(_zip(files)), "bytes after its end"),
}


def _between(content, which):
    return _moved(content, _places(content)[which], b"certified by all")


def _inside(content):
    hidden, at = b"certified by all", _places(content)[0]
    (packed,) = struct.unpack_from("<L", content, 18)
    first = content[:18] + struct.pack("<L", packed + len(hidden)) + content[22:]
    return _moved(first, at, hidden, inside=archive.MANIFEST.encode())


@pytest.mark.parametrize("what", HIDDEN)
def test_nothing_is_hidden_in_the_zip(built_in, tmp_path, what):
    make, words = HIDDEN[what]
    path = tmp_path / "bad.zip"
    path.write_bytes(make(members(built_in)))
    with zipfile.ZipFile(path) as bundle:
        assert bundle.testzip() is None  # Python's own reader finds nothing wrong
    with pytest.raises(InvalidInputError, match=words):
        coalmine.verify(path)


def test_a_folder_is_said_to_be_one(tmp_path, capsys):
    assert main(["verify", str(tmp_path)]) == 2
    assert "this is a folder" in capsys.readouterr().err


def test_two_long_texts_are_shown_where_they_differ(built_in, forge):
    """Cut at the same place they would look alike; and it is said which file says what."""
    found = coalmine.verify(built_in, sample=0)
    assert not found.differences
    changed = forge(built_in, {RESULT: lambda tree: tree["verdict"]["reasons"].append("x")})
    line = coalmine.verify(changed, sample=0).differences[0]
    assert "in result.json, " in line
    assert line.endswith("from audit.json and the trials")

    def edit(tree):
        tree["verdict"]["reasons"][0] += " at all"

    (line,) = coalmine.verify(forge(built_in, {RESULT: edit}), sample=0).differences
    one, other = line.partition(": ")[2].removesuffix(" from audit.json and the trials").split(" in result.json, ")
    assert one != other
    assert " at all" in one
