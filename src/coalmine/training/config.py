"""How a model is trained: every number of DP-SGD, checked. Frozen, so that it can be an identity."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coalmine import _validate
from coalmine._validate import assign as assign
from coalmine.errors import InvalidInputError
from coalmine.records import Sampling


@dataclasses.dataclass(frozen=True, kw_only=True)
class Glorot:
    """Weights from N(0, scale²·2/(fan in + fan out)) (Glorot and Bengio 2010, eq. 12 as a normal); biases 0.

    ``scale`` 0 gives every trial the same start, drawn once from ``seed`` at scale 1 ("fixed" in Table 2 of
    jagielski-2020); 0.5, 1 and 2 are the other columns of that table, with a fresh draw for each trial.

    >>> Glorot(scale=0).fixed
    True
    """

    scale: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        scale, seed = _validate.non_negative("scale", self.scale), _validate.integer("seed", self.seed, at_least=0)
        assign(self, scale=scale, seed=seed)

    @property
    def fixed(self) -> bool:
        """Whether every trial starts from the same weights."""
        return self.scale == 0.0


@dataclasses.dataclass(frozen=True, eq=False)
class GivenWeights:
    """Every trial starts from this parameter vector (worst-case starts, pre-trained models)."""

    values: NDArray[np.float64]

    def __post_init__(self) -> None:
        assign(self, values=_validate.finite_vector("initial weights", self.values))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sgd:
    """m ← m − η·g, or with momentum β: v ← β·v + g, m ← m − η·v (as torch.optim.SGD with zero dampening)."""

    momentum: float = 0.0

    def __post_init__(self) -> None:
        assign(self, momentum=_validate.half_open_unit("momentum", self.momentum))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adam:
    """Adam (Kingma and Ba 2015, Algorithm 1) on the private gradient."""

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        decay = {name: _validate.half_open_unit(name, getattr(self, name)) for name in ("beta1", "beta2")}
        assign(self, epsilon=_validate.positive("epsilon", self.epsilon), **decay)


PRODUCTS = {"float32": 0.0, "tf32": 2.0**-11, "bf16": 2.0**-8}
"""How far, relatively, a factor of a matrix product may be rounded on a GPU beyond the precision of its numbers."""


RegularizerGradient = Callable[[Any], Any]
"""∇r for a whole stack: a tensor ``[S, P]`` of parameters to a tensor ``[S, P]``, row by row."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """DP-SGD (Algorithm 1 of last-iterate-2024), with the divisor written out.

    One step with n base rows, sampling rate q and expected batch size B = n·q (the same in both worlds):

        g = (Σ_i∈batch clip_C(∇ℓ(m, x_i)) + N(0, σ²C²·I)) / B        the private gradient
        m ← m − η·(g + ∇r(m))                                        the regularizer is never clipped

    The paper's Algorithm 1 is the case C = 1, its η is η/B here and its r is B·r here. Set ``sample_rate`` or
    ``batch_size`` (expected) for ``poisson``; ``batch_size`` for ``shuffle``; neither for ``full``.
    ``regularizer`` is λ of r(m) = λ/2·‖m‖², or a function that gives ∇r for a stack of parameter vectors.
    ``noise_multiplier`` may be 0 (no privacy) and ``learning_rate`` may be 0 (nasr-2021's malicious data set).
    ``noise_scale`` is what σ is multiplied with: "clip" is C. "local" is the local sensitivity, anew each step and for
    each model: how far the clipped sums of the two worlds are apart at its parameters (bernau-2021, eqs. 10 and 12).
    It protects the two worlds from each other and no other data set, and it needs full batches.
    ``products`` lets a GPU round the factors of matrix products to "tf32" (11 significant bits) or "bf16" (8, in the
    fused kernels alone): another result, so it is part of the config. A CPU computes them in full, whatever it says.

    >>> TrainingConfig(steps=576, batch_size=250, clip=1.0, noise_multiplier=1.55, learning_rate=0.15).rate(6000)
    0.041666666666666664
    """

    steps: int
    clip: float
    noise_multiplier: float
    learning_rate: float
    sample_rate: float | None = None
    batch_size: float | None = None
    sampling: Sampling = Sampling.POISSON
    optimizer: Sgd | Adam = Sgd()
    regularizer: float | RegularizerGradient = 0.0
    initialization: Glorot | GivenWeights = Glorot()
    dtype: str = "float32"
    products: str = "float32"
    noise_scale: str = "clip"

    def __post_init__(self) -> None:
        sampling = Sampling.parse(self.sampling)
        checked: dict[str, object] = {
            "steps": _validate.integer("steps", self.steps, at_least=1),
            "clip": _validate.positive("clip", self.clip),
            "noise_multiplier": _validate.non_negative("noise_multiplier", self.noise_multiplier),
            "learning_rate": _validate.non_negative("learning_rate", self.learning_rate),
        }
        if not callable(self.regularizer):
            checked["regularizer"] = _validate.non_negative("regularizer", self.regularizer)
        if self.sample_rate is not None:
            checked["sample_rate"] = _validate.unit("sample_rate", self.sample_rate)
        if self.batch_size is not None:
            checked["batch_size"] = (
                _validate.positive("batch_size", self.batch_size)
                if sampling is Sampling.POISSON
                else _validate.integer("batch_size", self.batch_size, at_least=1)
            )
        assign(self, sampling=sampling, **checked)
        _validate.choice("dtype", self.dtype, ("float32", "float64"))
        _validate.choice("products", self.products, tuple(PRODUCTS))
        _validate.choice("noise_scale", self.noise_scale, ("clip", "local"))
        _validate.instance("optimizer", self.optimizer, (Sgd, Adam))
        _validate.instance("initialization", self.initialization, (Glorot, GivenWeights))
        if self.dtype == "float64" and self.products != "float32":
            raise _validate.reject("products", self.products, "'float32' (all of them in full) with dtype = 'float64'")
        given = (self.sample_rate is not None, self.batch_size is not None)
        allowed, words = {
            Sampling.POISSON: (((True, False), (False, True)), "either sample_rate or batch_size, not both"),
            Sampling.SHUFFLE: (((False, True),), "batch_size and no sample_rate"),
            Sampling.FULL: (((False, False),), "neither sample_rate nor batch_size"),
        }[sampling]
        if given not in allowed:
            raise InvalidInputError(
                f"sample_rate = {self.sample_rate!r}, batch_size = {self.batch_size!r} are not allowed with "
                f"sampling = {sampling.value!r}: expected {words}"
            )
        if self.noise_scale == "local" and sampling is not Sampling.FULL:
            raise _validate.reject(
                "noise_scale",
                self.noise_scale,
                "'clip' with sampled batches (the local sensitivity is that of the full batch: sampling = 'full')",
            )

    def kernel_clip(self, device: str) -> float:
        """What norms are clipped to on this kind of device, so that the clipped gradients' norms stay within C.

        A gradient e·aᵀ is clipped by its exact norm, but rounded factors (1 + u)·e and (1 + u)·a are what is added up.

        >>> config = TrainingConfig(
        ...     steps=1, sample_rate=0.1, clip=1, noise_multiplier=1, learning_rate=1, products="bf16")
        >>> round(config.kernel_clip("cuda"), 6), config.kernel_clip("cpu")
        (0.992233, 1.0)
        """
        return self.clip / (1.0 + PRODUCTS[self.products]) ** 2 if device == "cuda" else self.clip

    def rate(self, rows: int) -> float:
        """q: how likely a step uses a given row (``shuffle``: once an epoch, so batch over rows)."""
        if self.sampling is Sampling.FULL:
            return 1.0
        if self.sample_rate is not None:
            return self.sample_rate
        assert self.batch_size is not None
        if self.batch_size > rows:
            raise _validate.reject("batch_size", self.batch_size, f"at most the number of rows, {rows}")
        return self.batch_size / rows

    def expected_batch(self, rows: int) -> float:
        """B, the divisor: n·q of the base data, the same in both worlds and whatever batch was drawn.

        A sampling rate of 0 leaves nothing to divide by; the divisor is then 1.

        >>> TrainingConfig(steps=1, sample_rate=0.1, clip=1, noise_multiplier=1, learning_rate=1).expected_batch(50)
        5.0
        """
        rate = self.rate(rows)
        expected = rows * rate if self.batch_size is None else float(self.batch_size)
        return expected if math.isfinite(expected) and expected > 0.0 else 1.0
