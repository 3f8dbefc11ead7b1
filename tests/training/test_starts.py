"""Starts from files and from held-out rows: what is read is what was written, and nothing is unpickled."""

import zipfile

import numpy as np
import pytest
import torch

from coalmine import _validate
from coalmine.errors import InvalidInputError
from coalmine.training import (
    AnnamalaiCnn,
    Dataset,
    FromModule,
    LogisticRegression,
    Mlp,
    load_weights,
    module,
    pretrained,
)

NETWORK = Mlp(3, hidden=(2,), classes=2)  # shapes (2, 3), (2,), (2, 2), (2,): 14 numbers


def parameters(seed=0):
    body = module(NETWORK)
    torch.manual_seed(seed)
    torch.nn.utils.vector_to_parameters(torch.randn(14), body.parameters())
    return [p.detach().numpy() for p in body.parameters()]


def header(text):
    """The start of a .npy file, and no numbers after it."""
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


def archive(path, name, content):
    with zipfile.ZipFile(path, "w") as made:
        made.writestr(name, content)


def cut(path):
    """An archive whose numbers are not those that its sum is of."""
    np.savez(path, np.arange(14.0))
    content = bytearray(path.read_bytes())
    content[content.index(np.float64(9.0).tobytes()) + 7] ^= 1
    path.write_bytes(content)


def test_a_vector_and_the_arrays_of_a_module_are_the_same_start(tmp_path):
    parts = parameters()
    vector = np.concatenate([part.ravel() for part in parts]).astype(np.float64)
    np.save(tmp_path / "vector.npy", vector)
    np.savez(tmp_path / "vector.npz", all_of_it=vector)
    np.savez_compressed(tmp_path / "arrays.npz", *parts)
    for name in ("vector.npy", "vector.npz", "arrays.npz"):
        assert np.array_equal(load_weights(tmp_path / name, network=NETWORK).values, vector)


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda path: None, "there is no such file"),
        (lambda path: path.mkdir(), "it is not a plain file"),
        (lambda path: path.symlink_to("/dev/zero"), "it is not a plain file"),
        (lambda path: path.write_bytes(b"weights"), "it is not in the format of numpy: expected a .npy or .npz file"),
        (lambda path: path.write_bytes(b""), "it is not in the format of numpy"),
        (lambda path: path.write_bytes(b"PK\x03\x04" + bytes(40)), "expected a .npy or .npz file"),
        (lambda path: path.write_bytes(header("(" * 500)), "it is not in the format of numpy"),
        (lambda path: path.write_bytes(header("{'descr': '<f8', 'fortran_order': False, 'shape': (-14,)}")),
         "it claims an array of shape (-14,)"),
        (lambda path: path.write_bytes(header("{'descr': '<f8', 'fortran_order': False, 'shape': (100000000000,)}")),
         "it claims an array of shape (100000000000,): expected 14 numbers or fewer"),
        (lambda path: path.write_bytes(header("{'descr': '<f8', 'fortran_order': False, 'shape': (14,)}")),
         "its header claims 112 bytes of numbers: the file has 0"),
        (lambda path: np.save(path, np.zeros(13)), "it has 13 numbers: expected 14"),
        (lambda path: np.save(path, np.array([0.0] * 11 + [np.nan, 0.0, np.inf])),
         "2 of its 14 numbers cannot be weights, the first at position 11 (from 0): nan"),
        (lambda path: np.save(path, np.full(14, 1e39)), "the first at position 0 (from 0): 1e+39; expected finite"),
        (lambda path: np.save(path, np.zeros(14, dtype=complex)), "dtype complex128: expected floating-point or whole"),
        (lambda path: np.save(path, np.array([{}] * 14), allow_pickle=True), "dtype object (pickled, and nothing is"),
        (lambda path: np.save(path, np.zeros(200_000)), "shape (200000,): expected 14 numbers or fewer"),
        (lambda path: np.savez(path, a=np.zeros((3, 2)), b=np.zeros(8)), "shapes [(3, 2), (8,)]"),
        (lambda path: np.savez(path), "an archive without arrays"),
        (lambda path: archive(path, "readme.txt", b"weights"), "its member 'readme.txt' is no array"),
        (lambda path: archive(path, "a.npy", b"weights"), "it is not in the format of numpy"),
        (lambda path: cut(path), "broken archive"),
    ],
    ids=["missing", "folder", "device", "text", "empty", "no zip", "nested header", "negative", "huge claim", "cut off",
         "too few", "nan", "beyond float32", "complex", "objects", "large", "shapes", "no member", "readme",
         "text in an archive", "damaged archive"],
)  # fmt: skip
def test_what_is_no_start_is_refused_in_one_line(tmp_path, write, words):
    path = tmp_path / ("start.npz" if "arch" in words or "shapes" in words else "start.npy")
    write(path)
    with pytest.raises(InvalidInputError) as caught:
        load_weights(path, network=NETWORK)
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"training.initialization: file = {_validate.shown(str(path))} is not allowed")
    assert "allow_pickle" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_relative_path_is_said_in_full(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInputError, match="there is no such file") as caught:
        load_weights("start.npz", network=NETWORK)
    assert f"(looked for {tmp_path / 'start.npz'})" in str(caught.value)


def test_an_archive_that_would_unpack_to_much_more_is_refused_unread(tmp_path):
    np.savez_compressed(tmp_path / "bomb.npz", np.zeros(2**21))
    assert (tmp_path / "bomb.npz").stat().st_size < 2**15
    with pytest.raises(InvalidInputError, match="expected 14 numbers or fewer"):
        load_weights(tmp_path / "bomb.npz", network=NETWORK)


def test_plain_sgd_is_what_it_says():
    """One epoch with one batch from Glorot weights: m − η·∇, rounded to 11 significant bits."""
    rng = np.random.default_rng(0)
    rows = Dataset(rng.normal(size=(20, 3)), rng.integers(0, 2, 20))
    first = pretrained(NETWORK, rows=rows, epochs=1, learning_rate=1e-12, batch_size=20).values
    after = pretrained(NETWORK, rows=rows, epochs=1, learning_rate=0.5, batch_size=20).values
    body = module(NETWORK).double()
    torch.nn.utils.vector_to_parameters(torch.from_numpy(np.array(first)), body.parameters())
    torch.nn.functional.cross_entropy(
        body(torch.from_numpy(np.array(rows.x))), torch.from_numpy(rows.y.copy())
    ).backward()
    gradient = torch.cat([p.grad.ravel() for p in body.parameters()]).numpy()
    assert np.allclose(after, first - 0.5 * gradient, rtol=1e-3, atol=1e-3)
    mantissa = np.frexp(after)[0] * 2.0**11
    assert np.array_equal(mantissa, np.round(mantissa))


def test_held_out_rows_are_learned_and_the_seed_decides():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(300, 4))
    rows = Dataset(x, (x[:, 0] > 0).astype(int))
    network = LogisticRegression(4)
    options = {"rows": rows, "epochs": 20, "learning_rate": 0.5, "batch_size": 32}
    start = pretrained(network, **options)
    body = module(network).double()
    torch.nn.utils.vector_to_parameters(torch.from_numpy(np.array(start.values)), body.parameters())
    right = (body(torch.from_numpy(x)).argmax(dim=1).numpy() == rows.y).mean()
    assert right > 0.95
    assert pretrained(network, **options) is start
    assert not np.array_equal(pretrained(network, **options, seed=1).values, start.values)


def test_a_module_is_trained_where_it_may_be_and_left_as_it_was():
    body = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    body[0].weight.requires_grad_(False)
    before = [p.detach().clone() for p in body.parameters()]
    rows = Dataset(np.random.default_rng(2).normal(size=(30, 3)), [0, 1] * 15)
    network = FromModule(body, input_shape=(3,), classes=2)
    start = pretrained(network, rows=rows, epochs=2, learning_rate=0.1, batch_size=10)
    assert start.values.size == 4 + 8 + 2
    assert all(torch.equal(p, was) for p, was in zip(body.parameters(), before, strict=True))


def test_a_rate_that_diverges_is_an_error():
    rows = Dataset(np.full((4, 3), 1e3), [0, 1, 0, 1])
    with pytest.raises(InvalidInputError, match="learning_rate"):
        pretrained(NETWORK, rows=rows, epochs=50, learning_rate=1e300, batch_size=2)


@pytest.mark.parametrize("pooling", ["max", "avg"])
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)])
def test_the_tanh_networks_end_at_the_classes(shape, pooling):
    assert module(AnnamalaiCnn(shape, pooling=pooling))(torch.zeros(2, *shape)).shape == (2, 10)
    with pytest.raises(InvalidInputError, match="pooling"):
        AnnamalaiCnn(shape, pooling="min")
