"""The real files, where COALMINE_DATA names their folder. Truths: published checksums of the official files."""

import gzip
import hashlib
import io
import os
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest

from coalmine.data import cifar10, load, subset, verify

FOLDER = Path(os.environ.get("COALMINE_DATA") or "nowhere")


def needs(*names):
    there = all((FOLDER / name).is_file() for name in names)
    return pytest.mark.skipif(not there, reason=f"{', '.join(names)} not in the folder that COALMINE_DATA names")


def bytes_of(x):
    pixels = np.rint(x * 255)
    assert np.array_equal(x, (pixels / 255).astype(np.float32))
    return pixels.astype(np.uint8)


def idx_bytes(array, shape):
    return bytes([0, 0, 8, len(shape)]) + b"".join(n.to_bytes(4, "big") for n in shape) + array.tobytes()


def official_idx(data):
    """The four official files, unpacked, as they must have been."""
    return {
        "train-images-idx3-ubyte": idx_bytes(bytes_of(data.x_train), (60_000, 28, 28)),
        "train-labels-idx1-ubyte": idx_bytes(data.y_train.astype(np.uint8), (60_000,)),
        "t10k-images-idx3-ubyte": idx_bytes(bytes_of(data.x_test), (10_000, 28, 28)),
        "t10k-labels-idx1-ubyte": idx_bytes(data.y_test.astype(np.uint8), (10_000,)),
    }


@needs("mnist.npz")
def test_mnist_is_the_official_data_both_ways(tmp_path):
    data = verify("mnist")
    official = official_idx(data)
    assert {name: hashlib.md5(content).hexdigest() for name, content in official.items()} == {
        "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
        "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
        "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
        "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
    }
    (tmp_path / "mnist").mkdir()
    for name, content in official.items():
        (tmp_path / "mnist" / f"{name}.gz").write_bytes(gzip.compress(content, compresslevel=1))
    # Packed anew, so the packed files' checksums differ: the unpacked ones are those above.
    assert load("mnist", data_dir=tmp_path, check=False).content_hash == data.content_hash


@needs("fashion_mnist.npz")
def test_fashion_mnist_and_the_part_that_is_audited(tmp_path):
    data = verify("fashion-mnist")
    assert np.bincount(data.y_train).tolist() == [6000] * 10
    assert np.bincount(data.y_test).tolist() == [1000] * 10
    # The widely used mean and standard deviation of its training pixels.
    assert data.x_train.mean(dtype=np.float64) == pytest.approx(0.2860, abs=5e-5)
    assert data.x_train.std(dtype=np.float64) == pytest.approx(0.3530, abs=5e-5)
    part = subset(data, classes=(0, 1), per_class=3000)
    assert (part.x_train.shape, part.x_test.shape, part.classes) == ((6000, 784), (2000, 784), 2)
    for label in (0, 1):
        expected = data.x_train[data.y_train == label][:3000]
        assert np.array_equal(part.x_train[part.y_train == label], expected)
    (tmp_path / "fashion-mnist").mkdir()
    for name, content in official_idx(data).items():
        (tmp_path / "fashion-mnist" / f"{name}.gz").write_bytes(gzip.compress(content, compresslevel=1))
    assert load("fashion-mnist", data_dir=tmp_path, check=False).content_hash == data.content_hash


@needs("cifar10_labels.npz", *cifar10._SHEETS)
def test_cifar10_is_the_official_binary_version_both_ways(tmp_path):
    data = verify("cifar10")
    train = np.concatenate([data.y_train.astype(np.uint8)[:, None], bytes_of(data.x_train)], axis=1)
    test = np.concatenate([data.y_test.astype(np.uint8)[:, None], bytes_of(data.x_test)], axis=1)
    batches = {f"data_batch_{i + 1}.bin": train[10_000 * i : 10_000 * (i + 1)].tobytes() for i in range(5)}
    batches["test_batch.bin"] = test.tobytes()
    assert {name: hashlib.md5(content).hexdigest() for name, content in batches.items()} == {
        "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
        "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
        "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
        "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
        "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
        "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
    }
    (tmp_path / "cifar10").mkdir()
    with tarfile.open(tmp_path / "cifar10/cifar-10-binary.tar.gz", "w:gz", compresslevel=0) as archive:
        for name, content in batches.items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    assert load("cifar10", data_dir=tmp_path, check=False).content_hash == data.content_hash


@needs("adult.data.gz", "adult.test.gz")
def test_adult_has_104_features_and_the_official_files_give_the_same(tmp_path):
    data = verify("adult")
    assert (data.features, data.classes) == (104, 2)
    assert data.x_train.min() == 0.0
    assert data.x_train.max() == 1.0
    assert data.x_test.min() == 0.0
    assert data.x_test.max() == 1.0
    # Counts and share without incomplete rows, as the data set's own description (adult.names) gives them.
    assert (len(data.y_train), len(data.y_test)) == (30_162, 15_060)
    assert 100 * np.concatenate([data.y_train, data.y_test]).mean() == pytest.approx(24.78, abs=0.005)
    numbers = [0, 8, 25, 60, 61, 62]  # between them 7, 16 and 7 + 14 + 6 + 5 + 2 words, after them 41
    words = np.setdiff1d(np.arange(104), numbers)
    assert set(np.unique(data.x_train[:, words])) == {0.0, 1.0}
    assert (data.x_train[:, words].sum(axis=1) == 8).all()
    assert all(np.unique(data.x_train[:, at]).size > 10 for at in numbers)
    # First row of the official file: age 39 of 17..90, capital gain 2174 of at most 99999, income <=50K.
    assert data.x_train[0, 0] == np.float32((39 - 17) / (90 - 17))
    assert data.x_train[0, 60] == np.float32(2174 / 99999)
    assert data.y_train[0] == 0
    (tmp_path / "adult").mkdir()
    for part in ("data", "test"):
        content = gzip.decompress((FOLDER / f"adult.{part}.gz").read_bytes())
        (tmp_path / "adult" / f"adult.{part}").write_bytes(content)
    # The official files with their published checksums, tested.
    assert load("adult", data_dir=tmp_path, check=True, download=False).content_hash == data.content_hash


@needs("location30.npz")
def test_location30(tmp_path):
    data = verify("location30")
    labels = np.concatenate([data.y_train, data.y_test])
    assert (np.bincount(labels).min(), np.bincount(labels).max(), labels.size) == (97, 308, 5010)
    assert set(np.unique(data.x_train)) == {0.0, 1.0}
    test = np.arange(5010) % 5 == 4
    x, y = np.empty((5010, 446)), np.empty(5010, dtype=int)
    x[~test], x[test], y[~test], y[test] = data.x_train, data.x_test, data.y_train, data.y_test
    lines = (f'"{label + 1}",' + ",".join(str(int(bit)) for bit in row) for label, row in zip(y, x, strict=True))
    text = "\n".join(lines).encode()
    (tmp_path / "location30").mkdir()
    with tarfile.open(tmp_path / "location30/dataset_location.tgz", "w:gz") as archive:
        member = tarfile.TarInfo("bangkok")
        member.size = len(text)
        archive.addfile(member, io.BytesIO(text))
    assert load("location30", data_dir=tmp_path, check=False).content_hash == data.content_hash


@needs("location30.npz")
def test_a_changed_byte_in_a_real_file_is_refused(tmp_path):
    content = bytearray((FOLDER / "location30.npz").read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "location30.npz").write_bytes(content)
    with pytest.raises(ValueError, match="wrong checksum"):
        load("location30", data_dir=tmp_path)
    shutil.copy(FOLDER / "location30.npz", tmp_path / "location30.npz")
    assert load("location30", data_dir=tmp_path).classes == 30
