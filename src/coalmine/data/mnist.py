"""MNIST: 70,000 grey pictures of handwritten digits, 28 × 28 pixels."""

from __future__ import annotations

from coalmine.data import _idx_pictures
from coalmine.data.entry import Entry, File

ENTRY = Entry(
    name="mnist",
    citation="LeCun, Cortes, Burges, The MNIST database, http://yann.lecun.com/exdb/mnist/",
    licence="none stated (commonly given as CC BY-SA 3.0)",
    train_rows=60_000,
    test_rows=10_000,
    features=784,
    classes=10,
    content_hash="a4ea8d714a06aed1e3d10d5c27fa296dcdb4fd6575143fe8a6f5432b70a7331c",
    image_shape=(1, 28, 28),
    sources=_idx_pictures.sources(
        "mnist",
        repacked=File("mnist.npz", "sha256:06af5dfe73b70e3bc1c36439982b18a8d76803db9b544f6fdf838a37fbb01b64"),
        base_url="https://ossci-datasets.s3.amazonaws.com/mnist/",
        md5=(
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
    ),
)
