"""Fashion-MNIST: 70,000 grey pictures of 28 × 28 pixels in 10 kinds of clothing."""

from __future__ import annotations

from coalmine.data import _idx_pictures
from coalmine.data.entry import Entry, File

ENTRY = Entry(
    name="fashion-mnist",
    citation="Xiao, Rasul, Vollgraf (2017), Fashion-MNIST, https://github.com/zalandoresearch/fashion-mnist",
    licence="MIT",
    train_rows=60_000,
    test_rows=10_000,
    features=784,
    classes=10,
    content_hash="81f09e9017d14fd3b5890f5c5f5d14e6d6ff52e69017e5963e9520474c98548a",
    image_shape=(1, 28, 28),
    sources=_idx_pictures.sources(
        "fashion-mnist",
        repacked=File("fashion_mnist.npz", "sha256:5b6d2c4c694a91887af8ab7d039c04f80af3c29378d731c93a538d2e831aa469"),
        base_url="https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
        md5=(
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
    ),
)
