"""One small audit of each kind, bundled once; and a forger who changes what a bundle says."""

import contextlib
import csv
import io
import json
import zipfile

import evidence_functions as own
import pytest
from evidence_bundles import INLINE, SETTINGS, members

import coalmine
from coalmine import report
from coalmine.auditing import config
from coalmine.evidence import archive
from coalmine.evidence.contents import Contents


@contextlib.contextmanager
def plain():
    """Pages are drawn in a second or two; here the page is the result as text, which is as sensitive and quick."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "page", lambda result: f"<html>{result.to_json()}</html>")
        yield


@pytest.fixture(autouse=True)
def plain_pages():
    """In every test here, and in no other: one of another folder may come between."""
    with plain():
        yield


@pytest.fixture(scope="session")
def audited(tmp_path_factory):
    """A store with a built-in audit, and its result."""
    store = tmp_path_factory.mktemp("evidence") / "a.db"
    result = coalmine.audit(config.parse(SETTINGS), store=store, execution=INLINE, name="the small one")
    return store, result


@pytest.fixture(scope="session")
def built_in(audited, tmp_path_factory):
    """The bundle of an audit by our own trainer: two attacks and a control."""
    store, result = audited
    with plain():
        return coalmine.bundle(result, store=store, output=tmp_path_factory.mktemp("bundle") / "built-in.zip")


@pytest.fixture(scope="session")
def own_store(tmp_path_factory):
    """A store with the audit of an own training whose exceptions and arguments say what they should not."""
    store = tmp_path_factory.mktemp("own") / "own.db"
    claim = coalmine.DpSgd(sample_rate=1.0, noise_multiplier=2.0, steps=1)
    result = coalmine.audit_function(
        own.bound,
        own.score,
        worlds=own.worlds,
        control=own.half,
        claim_dpsgd=claim,
        trials=64,
        messages=True,
        store=store,
        execution=INLINE,
    )
    return store, result


@pytest.fixture(scope="session")
def own_bundle(own_store, tmp_path_factory):
    """The bundle of that audit."""
    store, result = own_store
    with plain():
        return coalmine.bundle(result, store=store, output=tmp_path_factory.mktemp("bundle") / "own.zip")


@pytest.fixture
def forge(tmp_path):
    """Change members of a bundle; ``honest`` makes all that follows from them anew, as whoever can use Coalmine can.

    A change of JSON gets the tree, a change of a table its rows. The manifest is made anew, unless told otherwise.
    """

    def change(path, changes, *, honest=False, manifest=True):
        files = before = members(path)
        for name, edit in changes.items():
            where = next(one for one in files if one == name or one.startswith(f"trials/{name}"))
            if where.endswith(".json"):
                tree = json.loads(files[where])
                edit(tree)
                content = archive.json_bytes(tree)
            elif where.endswith(".csv"):
                rows = list(csv.reader(io.StringIO(files[where].decode())))
                edit(rows)
                target = io.StringIO()
                csv.writer(target, lineterminator="\n").writerows(rows)
                content = target.getvalue().encode()
            else:
                content = edit(files[where])
            files = {**files, where: content}
        if honest:
            result = Contents.from_files(files, where=path).result()
            files |= {
                archive.RESULT: archive.json_bytes(result.to_dict()),
                archive.REPORT: report.page(result).encode(),
            }
        assert files != before
        packed = archive.pack(files)
        if not manifest:
            packed = _with_manifest_of(before, files)
        target = tmp_path / "forged.zip"
        target.write_bytes(packed)
        return target

    return change


def _with_manifest_of(before, files):
    content = archive.json_bytes({"format": archive.FORMAT, "version": archive.VERSION, "files": archive.sums(before)})
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, one in [(archive.MANIFEST, content), *files.items()]:
            bundle.writestr(name, one)
    return target.getvalue()
