"""Finding, checking, fetching and reading files, with small made-up ones and a server on this machine."""

import dataclasses
import gzip
import hashlib
import http.server
import io
import pickle
import tarfile
import threading

import numpy as np
import pytest

from coalmine.data import _formats, cifar10, fetch, files, load, purchase100, registry, status, verify
from coalmine.data.entry import Entry, File, Source
from coalmine.data.loaded import Arrays
from coalmine.errors import DataError, InvalidInputError

CONTENT = {"a.bin": bytes(range(8)), "b.bin": bytes([0, 1, 0, 1])}


def decode(read):
    x = np.frombuffer(read("a.bin"), np.uint8).reshape(4, 2).astype(np.float32)
    y = np.frombuffer(read("b.bin"), np.uint8).astype(np.int64)
    return Arrays(x, y, x[:2], y[:2])


@pytest.fixture
def toy(monkeypatch, tmp_path):
    """A data set "toy" of two files that a local server holds, an empty data folder, an empty cache."""
    served, requests = tmp_path / "served", []
    served.mkdir()
    for name, content in CONTENT.items():
        (served / name).write_bytes(content)

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments, **more):
            super().__init__(*arguments, directory=str(served), **more)

        def log_message(self, *arguments):
            requests.append(self.path)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    base = f"http://127.0.0.1:{server.server_port}/"
    official = Source(
        tuple(
            File(name, f"{kind}:{hashlib.new(kind, CONTENT[name]).hexdigest()}", base + name)
            for name, kind in (("a.bin", "md5"), ("b.bin", "sha256"))
        ),
        decode,
        folder="toy",
    )
    repacked = Source(tuple(dataclasses.replace(file, url=None) for file in official.files), decode)
    entry = Entry(
        name="toy",
        citation="",
        licence="",
        train_rows=4,
        test_rows=2,
        features=2,
        classes=2,
        sources=(repacked, official),
        instead="use 'synthetic'",
    )
    monkeypatch.setitem(registry._ENTRIES, "toy", entry)
    monkeypatch.setattr(files, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setenv("COALMINE_DATA", str(tmp_path / "data"))
    (tmp_path / "data").mkdir()
    yield tmp_path, requests
    server.shutdown()
    thread.join()
    server.server_close()


def put(folder):
    folder.mkdir(exist_ok=True)
    for name, content in CONTENT.items():
        (folder / name).write_bytes(content)


def test_load_fetches_once_then_reads_the_cache(toy):
    folder, requests = toy
    assert status("toy").found is False
    assert status("toy").where == "coalmine data fetch toy"
    told = []
    first = load("toy", progress=told.append)
    assert [line.rpartition("/")[2] for line in told] == ["a.bin", "b.bin"]
    assert sorted(requests) == ["/a.bin", "/b.bin"]
    assert sorted(path.name for path in (folder / "cache/toy").iterdir()) == ["a.bin", "b.bin"]
    assert load("toy").content_hash == first.content_hash
    assert fetch("toy") == folder / "cache/toy"
    assert len(requests) == 2
    assert status("toy").found is True


def test_a_given_folder_comes_first_and_nothing_is_fetched(toy):
    folder, requests = toy
    put(folder / "mine")
    put(folder / "data")
    assert status("toy", data_dir=folder / "mine").where == str(folder / "mine")
    assert status("toy").where == str(folder / "data")
    assert load("toy", data_dir=folder / "mine").x_train.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert verify("toy").classes == 2
    assert requests == []


def test_fetch_into_a_folder_that_is_not_there_yet(toy):
    folder, _ = toy
    assert fetch("toy", data_dir=folder / "new" / "place") == folder / "new/place/toy"
    assert load("toy", data_dir=folder / "new/place", download=False).features == 2
    assert not (folder / "cache").exists()


def test_a_missing_data_set_says_where_it_looked_and_what_to_do(toy):
    folder, requests = toy
    with pytest.raises(DataError) as caught:
        load("toy", download=False)
    message = str(caught.value)
    for part in ("a.bin + b.bin", "toy/a.bin", str(folder / "data"), str(folder / "cache"), "coalmine data fetch toy"):
        assert part in message
    assert "use 'synthetic'" in message
    with pytest.raises(DataError, match="not here"):
        verify("toy")
    with pytest.raises(DataError, match=r"data_dir = .* is not a folder"):
        load("toy", data_dir=folder / "nowhere")
    assert requests == []


def test_a_wrong_checksum_on_disk_names_file_expected_and_got(toy):
    folder, _ = toy
    put(folder / "data")
    (folder / "data/b.bin").write_bytes(bytes([0, 0, 1, 1]))
    for call in (load, verify, fetch):
        with pytest.raises(DataError) as caught:
            call("toy")
        message = str(caught.value)
        assert str(folder / "data/b.bin") in message
        assert hashlib.sha256(CONTENT["b.bin"]).hexdigest() in message
        assert hashlib.sha256(bytes([0, 0, 1, 1])).hexdigest() in message
        assert "coalmine data fetch toy" in message
    assert load("toy", check=False).y_train.tolist() == [0, 0, 1, 1]


def test_fetch_into_a_folder_that_cannot_be_made(toy):
    folder, _ = toy
    (folder / "file").write_text("in the way")
    with pytest.raises(InvalidInputError, match=r"data_dir = .* cannot be made"):
        fetch("toy", data_dir=folder / "file" / "new")


def test_fetch_replaces_a_damaged_download(toy):
    folder, _ = toy
    load("toy")
    (folder / "cache/toy/a.bin").write_bytes(b"damaged")
    with pytest.raises(DataError, match="wrong checksum"):
        load("toy")
    fetch("toy")
    assert load("toy").x_train[3, 1] == 7


def test_a_wrong_checksum_from_the_server_leaves_nothing_behind(toy):
    folder, _ = toy
    (folder / "served/b.bin").write_bytes(b"other")
    with pytest.raises(DataError, match=r"b\.bin gave a file with the wrong checksum.*nothing was kept.*'synthetic'"):
        load("toy")
    assert [path.name for path in (folder / "cache/toy").iterdir()] == ["a.bin"]


def test_a_server_that_does_not_have_it(toy):
    folder, _ = toy
    (folder / "served/a.bin").unlink()
    with pytest.raises(DataError, match=r"cannot fetch http.*404.*put it at .*cache/toy/a\.bin"):
        load("toy")
    assert list((folder / "cache/toy").iterdir()) == []


def test_a_server_that_is_not_there(toy, monkeypatch):
    entry = registry._ENTRIES["toy"]
    official = entry.sources[1]
    away = dataclasses.replace(
        official, files=tuple(dataclasses.replace(file, url="http://127.0.0.1:9/x") for file in official.files)
    )
    monkeypatch.setitem(registry._ENTRIES, "toy", dataclasses.replace(entry, sources=(away,)))
    with pytest.raises(DataError, match="no connection"):
        load("toy")


def test_content_of_the_wrong_shape(toy, monkeypatch):
    put(toy[0] / "data")
    entry = registry._ENTRIES["toy"]
    monkeypatch.setitem(registry._ENTRIES, "toy", dataclasses.replace(entry, train_rows=5))
    with pytest.raises(DataError, match=r"\(4, 2, 2, 2\): expected \(5, 2, 2, 2\)"):
        verify("toy")
    monkeypatch.setitem(registry._ENTRIES, "toy", dataclasses.replace(entry, content_hash="0" * 64))
    with pytest.raises(DataError, match="content hash"):
        verify("toy")
    (toy[0] / "data/b.bin").write_bytes(b"")
    with pytest.raises(DataError):
        load("toy", check=False)


def test_checksums_by_their_published_values():
    assert File("x", "git-blob:0").digest(b"hello\n") == "git-blob:ce013625030ba8dba906f756967f9e9ca394464a"
    assert File("x", "md5:0").digest(b"") == "md5:d41d8cd98f00b204e9800998ecf8427e"
    assert File("x", "sha256:0").digest(b"abc").startswith("sha256:ba7816bf8f01cfea414140de5dae2223")


def test_every_registered_file_has_a_full_checksum_and_some_source_an_address():
    lengths = {"md5": 32, "sha256": 64, "git-blob": 40}
    for entry in registry._ENTRIES.values():
        assert (entry.generate is None) == bool(entry.sources)
        for file in (file for source in entry.sources for file in source.files):
            kind, _, digits = file.checksum.partition(":")
            assert len(bytes.fromhex(digits)) * 2 == lengths[kind]
            assert file.url is None or file.url.startswith("https://")
        assert entry.generate or any(source.can_be_fetched for source in entry.sources)


# ---- formats ---------------------------------------------------------------------------------------------------


def test_npz_never_unpickles():
    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("executed",))

    stream = io.BytesIO()
    np.savez(stream, x=np.array([Bomb()], dtype=object))
    with pytest.raises(ValueError, match="allow_pickle"):
        _formats.npz(stream.getvalue())
    with pytest.raises(ValueError, match=r"allow_pickle|pickle"):
        _formats.npz(pickle.dumps([1]))


def idx_file(shape, data):
    header = bytes([0, 0, 8, len(shape)]) + b"".join(n.to_bytes(4, "big") for n in shape)
    return gzip.compress(header + bytes(data))


def test_idx_files():
    assert _formats.idx(idx_file((2, 1, 3), range(6))).tolist() == [[[0, 1, 2]], [[3, 4, 5]]]
    for bad in (idx_file((2, 2), range(5)), gzip.compress(b""), gzip.compress(b"\0\0\x0d\1\0\0\0\0")):
        with pytest.raises(ValueError, match="IDX"):
            _formats.idx(bad)


def archive(members):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            if content is None:
                info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
                tar.addfile(info)
            else:
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def test_tar_members_are_read_in_memory_and_links_are_not_followed():
    assert _formats.tar_members(archive({"../../x": b"no", "./x": b"yes", "y": b"2"}), ["y", "x"]) == [b"2", b"yes"]
    for bad in ({"x": None}, {"y": b""}, {"../x": b""}):
        with pytest.raises(ValueError, match="no file 'x'"):
            _formats.tar_members(archive(bad), ["x"])


def purchase_text(rows, rng):
    bits = rng.integers(0, 2, (rows, 600))
    labels = rng.permutation(np.arange(rows) % 100) + 1
    lines = (f"{label}," + ",".join(map(str, row)) for label, row in zip(labels, bits, strict=True))
    return "\n".join(lines).encode() + b"\n", bits, labels


@pytest.mark.parametrize("folder", ["", "purchase100"])
def test_the_official_purchase_archive(tmp_path, monkeypatch, folder):
    text, bits, labels = purchase_text(500, np.random.default_rng(0))
    content = archive({"dataset_purchase": text})
    checksum = File("x", "git-blob:0").digest(content)
    sources = tuple(
        dataclasses.replace(source, files=(dataclasses.replace(source.files[0], checksum=checksum),))
        for source in purchase100.ENTRY.sources
    )
    monkeypatch.setitem(registry._ENTRIES, "purchase100", dataclasses.replace(purchase100.ENTRY, sources=sources))
    (tmp_path / folder).mkdir(exist_ok=True)
    (tmp_path / folder / "dataset_purchase.tgz").write_bytes(content)
    data = load("purchase100", data_dir=tmp_path)
    test = np.arange(500) % 5 == 4
    assert np.array_equal(data.x_train, bits[~test])
    assert np.array_equal(data.x_test, bits[test])
    assert np.array_equal(data.y_train, labels[~test] - 1)
    assert np.array_equal(data.y_test, labels[test] - 1)


def test_rows_of_bits_are_checked():
    good = b'3,1,0\n"1",0,1\n'
    x, y = _formats.label_and_bits(good, 2)
    assert (x.tolist(), y.tolist()) == ([[1, 0], [0, 1]], [2, 0])
    for bad in (b"1,0,2\n", b"1,0\n", b"1,0,1,1\n", b"x,0,1\n", b"", b"1,0;1\n"):
        with pytest.raises(ValueError):
            _formats.label_and_bits(bad, 2)


def test_a_sheet_is_cut_into_pictures_channels_first():
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (3200, 3200, 3), dtype=np.uint8)
    pixels[32:64, 96:128, 2] = 77  # row 1, column 3: picture 103
    stream = io.BytesIO()
    small = np.zeros_like(pixels)
    small[32:64, 96:128] = pixels[32:64, 96:128]
    Image.fromarray(small).save(stream, "WEBP", lossless=True, method=0)
    found = cifar10.sheet(stream.getvalue())
    assert np.array_equal(found[103].transpose(1, 2, 0), pixels[32:64, 96:128])
    assert (found[103, 2] == 77).all()
    assert found[102].max() == found[104].max() == found[203].max() == 0
    stream = io.BytesIO()
    Image.fromarray(small[:64]).save(stream, "WEBP", lossless=True)
    with pytest.raises(ValueError, match="3200"):
        cifar10.sheet(stream.getvalue())
    stream = io.BytesIO()
    Image.fromarray(small[:64]).save(stream, "PNG")
    with pytest.raises(OSError, match="cannot identify"):
        cifar10.sheet(stream.getvalue())
