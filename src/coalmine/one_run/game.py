"""The game of one training on our own trainer: canaries, coins, the training, and a score for each canary."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coalmine import _validate
from coalmine.adversaries import ManyCanaries
from coalmine.errors import InvalidInputError, UnsupportedError
from coalmine.one_run import seal
from coalmine.one_run.canaries import (
    KINDS,
    Canaries,
    GradientCanaries,
    RowCanaries,
    dirac,
    kind_named,
    mislabeled,
    random_directions,
)
from coalmine.one_run.scorers import GradientScores, Movement, OutputScores
from coalmine.one_run.trainings import Trainings
from coalmine.records import DpSgd, OneRunScores, Sampling
from coalmine.training import (
    Dataset,
    ExampleCanary,
    GradientRows,
    Neighbours,
    Network,
    TrainingConfig,
    parameter_count,
    takes_tokens,
    train,
)

Array = NDArray[np.float64]
_PILOT_STEPS = 50


@dataclasses.dataclass(frozen=True, kw_only=True)
class Price:
    """What the canaries cost: the accuracy of the model with them and without, on the same test rows."""

    with_canaries: float
    without: float

    @property
    def cost(self) -> float:
        """Accuracy lost."""
        return self.without - self.with_canaries


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Played:
    """One training with canaries, or several pooled: coins and scores of all canaries, and what the canaries cost.

    ``seconds`` is the time of the trainings with canaries.
    """

    scores: OneRunScores
    runs: int
    price: Price | None
    seconds: float


def play(
    network: Network,
    *,
    base: Dataset,
    training: TrainingConfig,
    canaries: Canaries,
    runs: int = 1,
    noise: float = 1.0,
    knows_batches: bool = True,
    references: int = 0,
    test: Dataset | None = None,
    seed: int | None = None,
    device: str = "cpu",
) -> Played:
    """Train once (or ``runs`` times, each with coins of its own) with the canaries that the coins chose; score all.

    Rows are scored by minus their loss on the final model (black box); gradients by the likelihood of every step's
    private gradient (white box).

    Args:
        network: What is trained.
        base: The rows that are always there.
        training: How it is claimed to be trained; the white-box score takes its noise for true.
        canaries: Rows or gradients that may be there too.
        runs: How many trainings are pooled.
        noise: Share of the claimed noise that it is really trained with: below 1 it is a broken training.
        knows_batches: For gradients: whether the attacker knows the other rows and which of them each step drew, and
            takes off what they add to the private gradient. The claim covers such an attacker.
        references: For rows: trainings with coins of the attacker's own, whose mean score of each canary is taken off.
            Whoever knows the data can make them before the audited training begins.
        test: Test rows for the price; one more training without canaries is needed.
        seed: For a game that can be repeated bit by bit; the coins are fresh if left out.
        device: "cpu" or "cuda".

    Returns:
        Scores with ids that differ in all runs, and the price.

    >>> from coalmine.one_run.canaries import dirac
    >>> from coalmine.training import Mlp
    >>> rng = np.random.default_rng(0)
    >>> base = Dataset(rng.normal(size=(100, 4)), rng.integers(0, 2, size=100))
    >>> training = TrainingConfig(steps=20, sample_rate=0.5, clip=1.0, noise_multiplier=1.0, learning_rate=0.1)
    >>> played = play(Mlp(4), base=base, training=training, canaries=dirac(parameters=226, canaries=100), seed=0)
    >>> played.scores.score.size
    100
    """
    _validate.instance("canaries", canaries, (RowCanaries, GradientCanaries))
    times = _validate.integer("runs", runs, at_least=1)
    extra = _validate.integer("references", references, at_least=0)
    if extra and isinstance(canaries, GradientCanaries):
        raise _validate.reject("references", references, "0 for gradients: their score needs no reference")
    secret = seal.new_secret() if seed is None else seal.derived(_validate.integer("seed", seed, at_least=0))
    fingerprint = "one run " + (hashlib.sha256(secret).hexdigest() if seed is None else str(seed))
    sigma = training.noise_multiplier * _validate.non_negative("noise", noise)
    table = Trainings(
        network=network,
        base=base,
        training=dataclasses.replace(training, noise_multiplier=sigma),
        attack=attack_of(
            canaries,
            network=network,
            base=base,
            training=training,
            runs=times,
            references=extra,
            knows_batches=knows_batches,
            test=test,
        ),
        fingerprint=fingerprint,
        device=device,
    )
    start = time.perf_counter()
    ids = [seal.make_ids("run", canaries=canaries.number, part=part) for part in range(1, times + 1)]
    flips = [seal.coins(secret, names) for names in ids]
    found = [table.run(coins, trial=part) for part, coins in enumerate(flips, start=1)]
    seconds = time.perf_counter() - start
    scores = np.stack([table.compared(each[:-1]) for each in found])
    price = None
    if test is not None:
        plain = [table.run(None, trial=part) for part in range(1, times + 1)]
        price = Price(
            with_canaries=float(np.mean([each[-1] for each in found])),
            without=float(np.mean([each[-1] for each in plain])),
        )
    return Played(
        scores=OneRunScores(np.concatenate(flips), scores.ravel(), np.concatenate(ids)),
        runs=times,
        price=price,
        seconds=seconds,
    )


def prices(
    network: Network,
    *,
    base: Dataset,
    training: TrainingConfig,
    test: Dataset,
    kind: str = "dirac",
    sizes: Sequence[int],
) -> tuple[Price, ...]:
    """What m canaries cost in accuracy, for several m: a training with half of them in each, and one without any.

    Start, batches of other rows and noise are the same in all trainings.
    """
    found: list[Price] = []
    pool, asked = apart(kind, test)
    for number in sizes:
        chosen = make_canaries(kind, network=network, base=base, training=training, number=number, held_out=pool)
        table = Trainings(
            network=network,
            base=base,
            training=training,
            attack=attack_of(chosen, network=network, base=base, training=training, test=asked),
            fingerprint="price of canaries",
        )
        without = found[0].without if found else float(table.run(None, trial=0)[-1])
        found.append(Price(with_canaries=float(table.run(table.flips(0), trial=0)[-1]), without=without))
    return tuple(found)


def mechanism_of(training: TrainingConfig, *, rows: int) -> DpSgd:
    """The DP-SGD that this training is, for its claim.

    >>> config = TrainingConfig(steps=20, sample_rate=0.5, clip=1.0, noise_multiplier=1.0, learning_rate=0.1)
    >>> mechanism_of(config, rows=100).sample_rate
    0.5
    """
    if training.noise_scale != "clip" or training.sampling is Sampling.SHUFFLE or training.noise_multiplier == 0.0:
        raise UnsupportedError(
            "this training is no DP-SGD whose curve is known: expected noise scaled to the clipping norm, above 0, and "
            "Poisson or full batches"
        )
    return DpSgd(
        sample_rate=training.rate(rows),
        noise_multiplier=training.noise_multiplier,
        steps=training.steps,
        sampling=training.sampling,
    )


def quiet_parameters(
    network: Network, *, base: Dataset, training: TrainingConfig, number: int, seed: int = 0
) -> NDArray[np.int64]:
    """The parameters that the data moves least, the quietest first: the places for gradient canaries.

    They are found in a short training on the same rows without noise or canaries (the idea of GC-S in Cebere, Bellet
    and Papernot 2025). They depend on the data, which the attacker knows, and on no coin.
    """
    size = parameter_count(network)
    wanted = _validate.integer("number", number, at_least=1, at_most=size)
    pilot = dataclasses.replace(training, noise_multiplier=0.0, steps=min(training.steps, _PILOT_STEPS))
    movement = Movement()
    train(
        network,
        neighbours=Neighbours(base),
        config=pilot,
        fingerprint=f"quiet parameters {seed}",
        trials=[0],
        worlds=[0],
        observer=movement,
    )
    # Equal ones (often: exactly 0) in an order of their own, not in that of the layers.
    shuffled = np.random.default_rng([0x9E7, seed]).permutation(size)
    return np.asarray(shuffled[np.argsort(movement.moved[0][shuffled], kind="stable")][:wanted])


def apart(kind: str, held_out: Dataset | None) -> tuple[Dataset | None, Dataset | None]:
    """Rows that canaries may be made of, and rows on which right answers are counted: never the same.

    Mislabeled canaries take the first half of the held-out rows, so that the other half says what they cost.

    >>> rows = Dataset([[0.0], [1.0], [2.0], [3.0]], [0, 1, 0, 1])
    >>> [part.rows for part in apart("mislabeled", rows)]
    [2, 2]
    """
    if held_out is None or kind != "mislabeled":
        return held_out, held_out
    half = held_out.rows // 2
    return Dataset(held_out.x[:half], held_out.y[:half]), Dataset(held_out.x[half:], held_out.y[half:])


def make_canaries(
    kind: str,
    *,
    network: Network,
    base: Dataset,
    training: TrainingConfig,
    number: int,
    held_out: Dataset | None = None,
    per_coordinate: int = 1,
    support: int = 64,
    scale: float = 10.0,
    seed: int = 0,
) -> Canaries:
    """Canaries of a kind for this training; Dirac gradients go to the parameters that the data moves least.

    ``kind`` is a name of :data:`coalmine.one_run.canaries.KINDS`; random tokens are for networks that take tokens. New
    tokens are not among them: a network here has none to spare. ``held_out`` are rows that are not trained on, for
    ``mislabeled`` (the training rows if left out); ``per_coordinate``, ``support`` and ``scale`` are for their kinds.
    """
    kind = _validate.choice("kind", kind_named(kind), tuple(name for name in KINDS if name != "new_tokens"))
    if (kind == "random_tokens") != takes_tokens(network) and kind not in ("dirac", "random_directions", "mislabeled"):
        fitting = "'random_tokens' or 'mislabeled'" if takes_tokens(network) else "rows of features"
        raise _validate.reject("kind", kind, f"{fitting} for this network, or gradients")
    if kind == "dirac":
        most = parameter_count(network) * _validate.integer("per_coordinate", per_coordinate, at_least=1)
        places = -(-_validate.integer("canaries", number, at_least=1, at_most=most) // per_coordinate)
        quiet = quiet_parameters(network, base=base, training=training, number=places, seed=seed)
        return dirac(
            parameters=parameter_count(network),
            canaries=number,
            per_coordinate=per_coordinate,
            coordinates=quiet,
            seed=seed,
        )
    if kind == "random_directions":
        size = parameter_count(network)
        return random_directions(parameters=size, canaries=number, support=support, seed=seed)
    common: dict[str, Any] = {"classes": network.classes, "canaries": number, "seed": seed}
    if kind == "mislabeled":
        pool = held_out or base
        return mislabeled(pool.x, pool.y, **common)
    if kind == "random_tokens":
        common |= {"vocabulary": int(base.x.max()) + 1, "length": int(base.x.shape[1])}
        return KINDS[kind](**common)
    if kind == "low_variance":
        common["scale"] = scale
    return KINDS[kind](base.x, **common)


def expected_attack(canaries: Canaries, *, mechanism: DpSgd) -> float | None:
    """μ of the attack that is expected, for choosing guesses: None (the best there is) for gradients.

    Rows are asked for at the final model alone, where the canary's draws add up and so does the noise: q·√T/σ at most
    (the last iterate of linear losses; last-iterate-2024, Section 3).

    >>> from coalmine.one_run.canaries import extreme
    >>> rows = extreme(np.eye(3), classes=2, canaries=4)
    >>> expected_attack(rows, mechanism=DpSgd(sample_rate=0.1, noise_multiplier=1.0, steps=100))
    1.0
    """
    if isinstance(canaries, GradientCanaries):
        return None
    return mechanism.sample_rate * math.sqrt(mechanism.steps) / mechanism.noise_multiplier


def attack_of(
    canaries: Canaries,
    *,
    network: Network,
    base: Dataset,
    training: TrainingConfig,
    runs: int = 1,
    references: int = 0,
    knows_batches: bool = True,
    test: Dataset | None = None,
    **choice: Any,
) -> ManyCanaries:
    """The attack with these canaries: rows are scored by the final model, gradients by every step.

    ``choice`` says how guesses are chosen, and notes (:class:`~coalmine.adversaries.ManyCanaries`). All else is as in
    :func:`play`; ``test`` are rows for the accuracy.
    """
    common: dict[str, Any] = {"runs": runs, "references": references, "training": training, **choice}
    if isinstance(canaries, RowCanaries):
        if canaries.y is None:
            raise InvalidInputError("canaries have no labels: our trainer trains classifiers, which need them")
        rows = ExampleCanary(canaries.x, canaries.y)
        return ManyCanaries(canaries=rows, scorer=OutputScores(canaries, test=test), groups=canaries.y, **common)
    size = parameter_count(network)
    if canaries.parameters != size:
        raise InvalidInputError(
            f"canaries are for {canaries.parameters} parameters: expected {size}, as the network has"
        )
    scorer = GradientScores(
        canaries,
        mechanism=mechanism_of(training, rows=base.rows),
        clip=training.clip,
        batch=training.expected_batch(base.rows),
        knows_batches=knows_batches,
        test=test,
    )
    gradients = GradientRows(canaries.indices, canaries.values * training.clip)
    return ManyCanaries(canaries=gradients, scorer=scorer, **common)
