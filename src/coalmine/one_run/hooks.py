"""Gradient canaries in a training with Opacus: inserted into the private sum of every step, and scored from it.

The canaries stand for rows of norm C after clipping: each one that is in is drawn by its own Poisson draw in every step
and added to the sum of clipped gradients before the noise. So noise, its size, and the accounting are put to the test;
the training's own sampler and its clipping are not, because these rows do not pass through them. Rows as canaries
(``coalmine one-run prepare``) test all of it, at the price of a weaker attack.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coalmine import _validate
from coalmine.errors import InvalidInputError
from coalmine.one_run.canaries import GradientCanaries
from coalmine.one_run.scorers import GradientScores
from coalmine.one_run.step_noise import StepNoise, with_doubt
from coalmine.records import DpSgd


class OpacusCanaries:
    """Adds gradient canaries to every step of an Opacus optimizer, and scores all of them.

    ``included`` go into the training, ``scored`` are all that may have: the score of each is the log-likelihood ratio
    of what was released in every step, which is what the inner optimizer is about to step along. ``knows_batches``
    takes off what the other rows add, as an attacker may who knows them and which of them were drawn.

    >>> from coalmine.one_run.canaries import dirac
    >>> OpacusCanaries(
    ...     object(), included=dirac(parameters=3, canaries=2), scored=dirac(parameters=3, canaries=3),
    ...     mechanism=DpSgd(sample_rate=0.1, noise_multiplier=1.0, steps=10))
    Traceback (most recent call last):
    coalmine.errors.InvalidInputError: optimizer is of type object: expected the DPOptimizer that make_private returned
    """

    def __init__(
        self,
        optimizer: Any,
        *,
        included: GradientCanaries,
        scored: GradientCanaries,
        mechanism: DpSgd,
        knows_batches: bool = True,
        seed: int | None = None,
    ) -> None:
        """Attach to the optimizer.

        Args:
            optimizer: The DPOptimizer that ``make_private`` returned.
            included: What the coins chose.
            scored: Every canary.
            mechanism: The DP-SGD that is claimed; canaries are drawn at its sampling rate.
            knows_batches: Whether the score takes off what the other rows add.
            seed: Of the canaries' own draws; fresh if left out.
        """
        if not all(hasattr(optimizer, name) for name in ("add_noise", "params", "max_grad_norm", "original_optimizer")):
            raise InvalidInputError(
                f"optimizer is of type {type(optimizer).__name__}: expected the DPOptimizer that make_private returned"
            )
        _validate.instance("mechanism", mechanism, DpSgd)
        size = sum(int(one.numel()) for one in optimizer.params)
        for name, given in (("included", included), ("scored", scored)):
            if given.parameters != size:
                raise InvalidInputError(
                    f"{name} is for {given.parameters} parameters: expected {size}, as the optimizer has"
                )
        scored.check_part(included)
        if isinstance(getattr(optimizer.add_noise, "__self__", None), OpacusCanaries):
            raise InvalidInputError("optimizer has canaries already: expected detach() of the others first")
        self._steps = mechanism.steps
        self._optimizer, self._included, self._rate = optimizer, included, mechanism.sample_rate
        self._rng = np.random.default_rng(seed)
        self._scorer = GradientScores(
            scored, mechanism=mechanism, clip=float(optimizer.max_grad_norm), batch=1.0, knows_batches=knows_batches
        )
        self._scorer.start(np.zeros(1, dtype=np.int64))
        self._step, self._plain = 0, optimizer.add_noise
        self._shared: Any = None
        self._drawn: Any = None
        self._noise, self._places = StepNoise(), np.unique(scored.indices)
        self._sigma = mechanism.noise_multiplier
        optimizer.add_noise = self._add_noise
        self._handle = optimizer.original_optimizer.register_step_pre_hook(self._before_step)

    def _add_noise(self) -> None:
        """Stands before the optimizer's own ``add_noise``: the sum is complete, the noise is not yet in it."""
        import torch

        parameters = self._optimizer.params
        self._shared = torch.cat([one.summed_grad.detach().reshape(-1) for one in parameters])
        drawn = np.flatnonzero(self._rng.random(self._included.number) < self._rate)
        extra = torch.zeros_like(self._shared)
        extra.index_add_(
            0,
            torch.from_numpy(self._included.indices[drawn].ravel()).to(extra.device),
            torch.from_numpy(self._included.values[drawn].ravel() * float(self._optimizer.max_grad_norm)).to(extra),
        )
        self._drawn = extra
        start = 0
        for one in parameters:
            one.summed_grad += extra[start : start + one.numel()].view_as(one.summed_grad)
            start += one.numel()
        self._plain()

    def _before_step(self, *_: Any) -> None:
        """What the inner optimizer is about to step along is what is released, whatever was done to it until then."""
        import torch

        if self._shared is None:
            raise InvalidInputError(
                "a step was taken whose noise was not added by this optimizer: expected its own add_noise in each step"
            )
        found = torch.cat([one.grad.detach().reshape(-1) for one in self._optimizer.params])
        self._step += 1
        released = found * _divisor(self._optimizer)
        self._scorer.observe(_Step(released[None], self._shared[None]))
        alone = (released - self._shared - self._drawn)[torch.from_numpy(self._places).to(released.device)]
        self._noise.add(alone.double().cpu().numpy() / (self._sigma * float(self._optimizer.max_grad_norm)))
        self._shared = None

    def scores(self) -> NDArray[np.float64]:
        """The score of every canary, after all steps.

        Where the noise of a step, or of a parameter, is not what is claimed, a warning says so, and the scores carry it
        to ``judge``, whose verdict is not *consistent* then. A file of scores holds the numbers alone.
        """
        if not self._step:
            raise InvalidInputError("no step was seen: expected scores() after the training, with this optimizer")
        if self._step > self._steps:
            raise InvalidInputError(
                f"steps = {self._steps} of the mechanism is not allowed: expected {self._step}, as many as were trained"
            )
        doubt = self._noise.doubt()
        if doubt is not None:
            warnings.warn(f"the noise of this training is not what is claimed: {doubt}", stacklevel=2)
        return with_doubt(self._scorer.log_odds(0), doubt)

    def detach(self) -> None:
        """The optimizer as it was."""
        self._optimizer.add_noise = self._plain
        self._handle.remove()


def _divisor(optimizer: Any) -> float:
    """What Opacus divides the noised sum by before the step."""
    if optimizer.loss_reduction != "mean":
        return 1.0
    return float(optimizer.expected_batch_size * optimizer.accumulated_iterations)


class _Step:
    """What the scorer sees of a step, in units of the sum."""

    def __init__(self, private_gradient: Any, shared: Any) -> None:
        self.private_gradient, self.shared = private_gradient, shared
