"""The config made concrete: its data, network and noise, and what theory says about it, before any training."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coalmine import _validate, data
from coalmine.auditing import config, promises
from coalmine.auditing.given import GivenData as GivenData
from coalmine.auditing.given import given_data, given_network
from coalmine.errors import InvalidInputError, UnsupportedError
from coalmine.records import DpSgd, Guarantee, Heuristic, Sampling
from coalmine.training import (
    AnnamalaiCnn,
    BernauCnn,
    Dataset,
    GivenWeights,
    Glorot,
    LogisticRegression,
    Mlp,
    NasrCnn,
    Network,
    Sgd,
    TrainingConfig,
    load_weights,
    network_identity,
    parameter_count,
    pretrained,
    takes_tokens,
)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Setting:
    """The config made concrete: data, network, training, and what theory says about it."""

    config: config.AuditConfig
    data_name: str
    base: Dataset
    test: Dataset | None
    classes: int
    picture: tuple[int, ...] | None
    data_hash: str
    data_note: str
    network: Network
    training: TrainingConfig
    sample_rate: float
    guarantee: Guarantee
    heuristic: Heuristic | None
    ran: DpSgd | None
    network_identity: Mapping[str, Any]
    guessing: float

    @property
    def mechanism(self) -> DpSgd | None:
        """The DP-SGD whose promise holds for everybody; None without noise, and with noise scaled to one pair."""
        return None if self.training.noise_scale == "local" else self.ran


def prepare(
    settings: config.AuditConfig, *, data_dir: str | None = None, data: GivenData | None = None, model: Any = None
) -> Setting:
    """Load the data, build the network, resolve the noise; all of theory, before any training.

    ``data`` and ``model`` from Python stand in the place of those that the config names.
    """
    loaded, aside = _parts(settings, data_dir, data)
    network = _network(settings.model, loaded) if model is None else given_network(model, loaded)
    base = _rows_for(network, loaded.x_train, loaded.y_train)
    test = _rows_for(network, loaded.x_test, loaded.y_test) if loaded.y_test.size else None
    training = settings.training
    rate, steps = training.rate(base.rows), training.step_count(base.rows)
    sampling = Sampling.parse(training.sampling)
    sigma = promises.noise(settings, rate=rate, steps=steps, sampling=sampling)
    mechanism = DpSgd(sample_rate=rate, noise_multiplier=sigma, steps=steps, sampling=sampling) if sigma > 0.0 else None
    guarantee, heuristic = promises.promised(
        mechanism, delta=settings.audit.delta, local=training.noise_scale == "local"
    )
    return Setting(
        config=settings,
        data_name=settings.data.name if data is None else loaded.name,
        base=base,
        test=test,
        classes=loaded.classes,
        picture=loaded.image_shape,
        data_hash=loaded.content_hash,
        data_note=loaded.note,
        network=network,
        training=TrainingConfig(
            steps=steps,
            clip=training.clip,
            noise_multiplier=sigma,
            learning_rate=training.learning_rate,
            sample_rate=None if sampling is Sampling.FULL else rate,
            sampling=sampling,
            optimizer=Sgd(momentum=training.momentum),
            regularizer=training.regularizer,
            initialization=_start(settings, network, aside),
            dtype=training.dtype,
            products=training.products,
            noise_scale=training.noise_scale,
        ),
        sample_rate=rate,
        guarantee=guarantee,
        heuristic=heuristic,
        ran=mechanism,
        network_identity=network_identity(network),
        guessing=float(np.unique(loaded.y_train, return_counts=True)[1].max() / loaded.y_train.size),
    )


def _rows_for(network: Network, x: NDArray[np.float32], y: NDArray[np.int64]) -> Dataset:
    """Rows in the shape that the network takes; tokens are whole numbers again."""
    if x.shape[1] != math.prod(network.input_shape):
        raise InvalidInputError(
            f"data has rows of {x.shape[1]} numbers, and the network takes rows of shape {tuple(network.input_shape)}: "
            "expected a network that is made for these rows"
        )
    rows: NDArray[Any] = x.reshape(-1, *network.input_shape)
    if takes_tokens(network):
        tokens = rows.astype(np.int64)
        if not np.array_equal(tokens, rows):
            raise InvalidInputError("data is not allowed for this network: expected token numbers (whole numbers)")
        rows = tokens
    return Dataset(rows, y)


def _parts(
    settings: config.AuditConfig, data_dir: str | None, given: GivenData | None
) -> tuple[data.LoadedData, data.LoadedData | None]:
    """The data that is audited, and the rows that are set aside for the start, if any."""
    start = settings.training.initialization
    held_out = start.held_out if isinstance(start, config.HeldOutStart) else 0
    if given is None:
        return _load(settings.data, data_dir, held_out)
    return _set_aside(given_data(given), held_out)


@functools.lru_cache(maxsize=2)
def _load(
    section: config.DataSection, data_dir: str | None, held_out: int
) -> tuple[data.LoadedData, data.LoadedData | None]:
    """The data of the config, and the rows set aside; studies ask for the same data many times."""
    loaded = data.load(section.name, data_dir=data_dir)
    if section.standardize:
        loaded = data.standardize(loaded)
    if section.classes is not None:
        loaded = data.subset(loaded, classes=section.classes)
    loaded, aside = _set_aside(loaded, held_out)
    _check_rows(section, loaded)
    if section.rows_per_class is not None or section.rows is not None:
        loaded = data.subset(loaded, per_class=section.rows_per_class, rows=section.rows)
    return loaded, aside


def _check_rows(section: config.DataSection, loaded: data.LoadedData) -> None:
    """There are as many rows as the config asks for; the message has the config's key, and the class as it calls it."""
    asked, names = section.rows_per_class, section.classes or range(loaded.classes)
    there = np.bincount(loaded.y_train, minlength=loaded.classes)
    if asked is not None and asked > there.min():
        few = int(there.argmin())
        allowed = f"at most {there[few]}, the rows of class {names[few]} of {loaded.name}"
        raise _validate.reject("data.rows_per_class", asked, allowed)
    rows = loaded.y_train.size if asked is None else asked * loaded.classes
    if section.rows is not None and section.rows > rows:
        raise _validate.reject("data.rows", section.rows, f"at most {rows}, the rows that are left of {loaded.name}")


def _set_aside(loaded: data.LoadedData, held_out: int) -> tuple[data.LoadedData, data.LoadedData | None]:
    """The rows after the first ``held_out``, and those first ones."""
    if held_out == 0:
        return loaded, None
    if held_out >= loaded.y_train.size:
        raise _validate.reject(
            "training.initialization.held_out", held_out, f"fewer than the {loaded.y_train.size} rows that there are"
        )
    first, rest = slice(None, held_out), slice(held_out, None)
    return tuple(
        dataclasses.replace(loaded, x_train=loaded.x_train[part].copy(), y_train=loaded.y_train[part].copy())
        for part in (rest, first)
    )  # type: ignore[return-value]


def _start(settings: config.AuditConfig, network: Network, aside: data.LoadedData | None) -> Glorot | GivenWeights:
    """Where every training starts."""
    start, seed = settings.training.initialization, settings.audit.seed
    if isinstance(start, config.FileStart):
        return load_weights(start.file, network=network)
    if isinstance(start, config.HeldOutStart):
        assert aside is not None
        rows = _rows_for(network, aside.x_train, aside.y_train)
        try:
            return pretrained(
                network, rows=rows, epochs=start.epochs, learning_rate=start.learning_rate, batch_size=start.batch_size
            )
        except InvalidInputError as error:  # training has keys of the same names
            raise InvalidInputError(f"training.initialization.{error}") from None
    return Glorot(scale=start, seed=seed)


def _network(section: config.ModelSection, loaded: data.LoadedData) -> Network:
    """The network of the config, for this data."""
    if section.kind == "logistic":
        return LogisticRegression(loaded.features, classes=loaded.classes)
    if section.kind.startswith("cnn"):
        shape = loaded.image_shape
        if shape is None:
            raise UnsupportedError(
                f"model.kind = {section.kind!r} needs pictures, and the rows of {loaded.name} are none: use mlp or "
                "logistic"
            )
        network: Network = BernauCnn(shape, classes=loaded.classes)
        if section.kind == "cnn-nasr-2021":
            network = NasrCnn(shape, classes=loaded.classes, activation=section.activation)
        elif section.kind == "cnn-annamalai-2024":
            network = AnnamalaiCnn(shape, classes=loaded.classes, pooling=section.pooling or "max")
        try:
            parameter_count(network)
        except InvalidInputError as error:
            raise UnsupportedError(f"model.kind = {section.kind!r} does not fit pictures of {shape}: {error}") from None
        return network
    return Mlp(loaded.features, hidden=section.hidden, classes=loaded.classes, activation=section.activation)
