"""Data and networks that a config cannot name: pictures through fixed random filters, and a small language model."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from coalmine import data
from coalmine.training import (
    Activation,
    Conv2d,
    Flatten,
    FromModule,
    Linear,
    LogisticRegression,
    Network,
    Sequential,
)

Arrays = tuple[NDArray[Any], NDArray[np.int64], NDArray[Any], NDArray[np.int64]]
"""Training rows, their labels, test rows, their labels."""
_FILTERS, _SIDE, _STRIDE, _CELLS = 128, 6, 2, 2
_LETTERS = " abcdefghijklmnopqrstuvwxyz0123456789.,:()'\"-_=\n"
_WINDOW = 16


def filtered(pictures: NDArray[Any]) -> NDArray[np.float32]:
    """Colour pictures of 32 × 32 through random 6 × 6 filters, both signs, averaged over quarters: 1024 features a row.

    The filters are drawn from a fixed seed and every row is scaled to length 4 by itself: no feature depends on other
    rows.

    >>> filtered(np.random.default_rng(0).random((2, 3072))).shape
    (2, 1024)
    """
    generator = torch.Generator().manual_seed(0xF17)
    filters = torch.randn(_FILTERS, 3, _SIDE, _SIDE, generator=generator) / _SIDE
    parts = []
    for some in torch.split(torch.from_numpy(np.array(pictures, dtype=np.float32)).reshape(-1, 3, 32, 32), 250):
        centered = some - some.mean(dim=(2, 3), keepdim=True)
        found = functional.conv2d(centered, filters, stride=_STRIDE)
        both = torch.cat([found.clamp(min=0.0), (-found).clamp(min=0.0)], dim=1)
        pooled = functional.adaptive_avg_pool2d(both, _CELLS).flatten(1)
        parts.append(4.0 * functional.normalize(pooled, dim=1))
    return np.asarray(torch.cat(parts).numpy())


def cifar10_features(data_dir: str | None) -> tuple[Arrays, Network]:
    """CIFAR-10 (500 rows a class) as :func:`filtered` features, and a linear model."""
    loaded = data.subset(data.load("cifar10", data_dir=data_dir), per_class=500)
    rows, test = filtered(loaded.x_train), filtered(loaded.x_test[:2000])
    return (rows, loaded.y_train, test, loaded.y_test[:2000]), LogisticRegression(rows.shape[1], classes=10)


def fashion_mnist_cnn(data_dir: str | None) -> tuple[Arrays, Network]:
    """Fashion-MNIST, classes 0 and 1 (3000 rows each), and a small convolutional network with 5178 parameters."""
    loaded = data.subset(data.load("fashion-mnist", data_dir=data_dir), classes=(0, 1), per_class=3000)
    network = Sequential(
        (1, 28, 28),
        2,
        (Conv2d(1, 8, 8, stride=4), Activation("relu"), Flatten(), Linear(288, 16), Activation("relu"), Linear(16, 2)),
    )
    return (loaded.x_train, loaded.y_train, loaded.x_test, loaded.y_test), network


class Transformer(nn.Module):
    """One block of attention over a window of letters; the last place says which letter comes next.

    >>> Transformer()(torch.zeros(3, 16, dtype=torch.long)).shape
    torch.Size([3, 48])
    """

    def __init__(self, size: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.letters = nn.Embedding(len(_LETTERS), size)
        self.places = nn.Parameter(0.1 * torch.randn(_WINDOW, size))
        self.before, self.after = nn.LayerNorm(size), nn.LayerNorm(size)
        self.attend, self.join = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.wide, self.narrow = nn.Linear(size, 2 * size), nn.Linear(2 * size, size)
        self.answer = nn.Linear(size, len(_LETTERS))

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the next letter, ``[B, letters]``."""
        seen = self.letters(x) + self.places
        batch, length, size = seen.shape
        parts = self.attend(self.before(seen)).reshape(batch, length, 3, self.heads, size // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        weights = (query @ key.transpose(-1, -2) / math.sqrt(size // self.heads)).softmax(dim=-1)
        seen = seen + self.join((weights @ value).transpose(1, 2).reshape(batch, length, size))
        last = seen[:, -1]
        found: Tensor = self.answer(last + self.narrow(torch.relu(self.wide(self.after(last)))))
        return found


def text(data_dir: str | None) -> tuple[Arrays, Network]:
    """The handbook of the language that every Python brings, letter by letter, and a small transformer.

    A row is 16 letters and the one that comes next; 4,000 rows to train on and 2,000 for the test. The text is that of
    the Python at hand, so rows differ a little from version to version.
    """
    topics = importlib.import_module("pydoc_data.topics").topics
    known = {letter: place for place, letter in enumerate(_LETTERS)}
    letters = [known[letter] for name in sorted(topics) for letter in topics[name].lower() if letter in known]
    whole = np.asarray(letters, dtype=np.int64)
    rows = whole[: whole.size // (_WINDOW + 1) * (_WINDOW + 1)].reshape(-1, _WINDOW + 1)
    rows = rows[np.random.default_rng(0x7E7).permutation(rows.shape[0])[:6000]]
    x, y = rows[:, :-1], rows[:, -1]
    torch.manual_seed(0)
    network = FromModule(Transformer(), input_shape=(_WINDOW,), classes=len(_LETTERS), tokens=True)
    return (x[:4000], y[:4000], x[4000:], y[4000:]), network


SCENES: dict[str, Callable[[str | None], tuple[Arrays, Network]]] = {
    "cifar10-features": cifar10_features,
    "fashion-mnist-cnn": fashion_mnist_cnn,
    "text": text,
}
"""Every scene by name."""
