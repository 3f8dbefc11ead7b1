"""The config made concrete: its data, network and noise, and what theory says about it, before any training."""

from __future__ import annotations

import dataclasses
import functools
import math

from coalmine import data
from coalmine.accounting import calibrate, last_iterate, standard
from coalmine.auditing import config
from coalmine.errors import InvalidInputError, UnsupportedError
from coalmine.identifiability import belief
from coalmine.records import DpSgd, Guarantee, Heuristic, Relation, Sampling
from coalmine.training import (
    BernauCnn,
    Dataset,
    Glorot,
    LogisticRegression,
    Mlp,
    NasrCnn,
    Network,
    Sgd,
    TrainingConfig,
    parameter_count,
)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Setting:
    """The config made concrete: data, network, training, and what theory says about it."""

    config: config.AuditConfig
    base: Dataset
    test: Dataset
    classes: int
    picture: tuple[int, ...] | None
    data_hash: str
    data_note: str
    network: Network
    training: TrainingConfig
    sample_rate: float
    guarantee: Guarantee
    heuristic: Heuristic | None
    mechanism: DpSgd | None


def prepare(settings: config.AuditConfig, *, data_dir: str | None = None) -> Setting:
    """Load the data, build the network, resolve the noise; all of theory, before any training."""
    loaded = _load(settings.data, data_dir)
    network = _network(settings.model, loaded)
    base = Dataset(loaded.x_train.reshape(-1, *network.input_shape), loaded.y_train)
    test = Dataset(loaded.x_test.reshape(-1, *network.input_shape), loaded.y_test)
    training = settings.training
    rate, steps = training.rate(base.rows), training.step_count(base.rows)
    sampling = Sampling.parse(training.sampling)
    sigma = _noise(settings, rate=rate, steps=steps, sampling=sampling)
    mechanism = DpSgd(sample_rate=rate, noise_multiplier=sigma, steps=steps, sampling=sampling) if sigma > 0.0 else None
    guarantee, heuristic = _theory(mechanism, delta=settings.audit.delta)
    if training.noise_scale == "local":
        guarantee, heuristic = _local_theory(mechanism, delta=settings.audit.delta)
        mechanism = None  # of what is promised to everybody
    return Setting(
        config=settings,
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
            optimiser=Sgd(momentum=training.momentum),
            regulariser=training.regularizer,
            initialisation=Glorot(scale=training.initialization, seed=settings.audit.seed),
            dtype=training.dtype,
            products=training.products,
            noise_scale=training.noise_scale,
        ),
        sample_rate=rate,
        guarantee=guarantee,
        heuristic=heuristic,
        mechanism=mechanism,
    )


@functools.lru_cache(maxsize=2)
def _load(section: config.DataSection, data_dir: str | None) -> data.DataSet:
    """The data of the config; studies ask for the same data many times."""
    loaded = data.load(section.name, data_dir=data_dir)
    if section.standardize:
        loaded = data.standardize(loaded)
    if section.classes is None and section.rows_per_class is None and section.rows is None:
        return loaded
    return data.subset(loaded, classes=section.classes, per_class=section.rows_per_class, rows=section.rows)


def _network(section: config.ModelSection, loaded: data.DataSet) -> Network:
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
        try:
            parameter_count(network)
        except InvalidInputError as error:
            raise UnsupportedError(f"model.kind = {section.kind!r} does not fit pictures of {shape}: {error}") from None
        return network
    return Mlp(loaded.features, hidden=section.hidden, classes=loaded.classes, activation=section.activation)


def _noise(settings: config.AuditConfig, *, rate: float, steps: int, sampling: Sampling) -> float:
    """σ: as given, or the smallest that keeps ε (or the ε behind a belief) within the target."""
    training = settings.training
    if training.noise_multiplier is not None:
        return training.noise_multiplier
    target = training.target_epsilon
    if training.target_belief is not None:
        target = belief.to_epsilon(training.target_belief)
    assert target is not None
    return calibrate.noise_multiplier(
        sample_rate=rate,
        steps=steps,
        epsilon=target,
        delta=settings.audit.delta,
        analysis=training.analysis.replace("-", "_"),
        sampling=sampling,
    ).noise_multiplier


@functools.lru_cache(maxsize=64)
def _theory(mechanism: DpSgd | None, *, delta: float) -> tuple[Guarantee, Heuristic | None]:
    """What is promised, and what is predicted for the last iterate."""
    if mechanism is None:
        return _nothing("there is no noise, so nothing is promised", delta=delta), None
    return standard.epsilon(mechanism, delta=delta), last_iterate.epsilon(mechanism, delta=delta)


def _nothing(reason: str, *, delta: float) -> Guarantee:
    """No promise, and why."""
    return Guarantee(
        epsilon=math.inf, delta=delta, analysis="none", relation=Relation.ADD_REMOVE, assumptions=(reason,)
    )


def _local_theory(mechanism: DpSgd | None, *, delta: float) -> tuple[Guarantee, Heuristic | None]:
    """With noise scaled to the local sensitivity of two data sets, theory speaks about these two alone."""
    nothing = _nothing(
        "the noise is scaled to the local sensitivity of the two data sets of each attack: what it hides is the "
        "difference between these two, so nothing is promised to any other person",
        delta=delta,
    )
    if mechanism is None:
        return nothing, None
    # Each step is a Gaussian mechanism whose noise is σ times the distance of its two means, exactly.
    pair = standard.epsilon(mechanism, delta=delta)
    predicted = Heuristic(
        epsilon=pair.epsilon,
        delta=delta,
        analysis="local_sensitivity",
        relation=Relation.ADD_REMOVE,
        assumptions=(
            "holds between the two data sets of an attack, whether a row is added, removed or replaced, and for no "
            "other neighbours of this data set",
            "bernau-2021, Section 5.1: noise scaled to the local sensitivity of the clipped gradients in every step",
        ),
    )
    return nothing, predicted
