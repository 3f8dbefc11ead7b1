"""How a :class:`~coalmine.probing.watch.Watch` reads a torch or Opacus optimizer, without changing anything in it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch

from coalmine import _validate
from coalmine.errors import InvalidInputError, UnsupportedError
from coalmine.probing.watch import Watch


@dataclasses.dataclass(eq=False)
class _Tensor:
    """A watched parameter: its name, the signs of its canary, and by how much a row may move it, in clipping norms."""

    name: str
    parameter: torch.Tensor
    signs: torch.Tensor
    share: float = 1.0

    def along(self, value: torch.Tensor) -> torch.Tensor:
        """The component along the canary."""
        return torch.dot(value.detach().reshape(-1).to(self.signs.dtype), self.signs)


@dataclasses.dataclass(eq=False)
class _Step:
    """What an Opacus optimizer says of the step that it takes now."""

    noise_multiplier: float
    max_grad_norm: float
    divisor: float
    known: dict[str, torch.Tensor] | None


def attach(
    optimizer: Any,
    *,
    model: Any,
    noise_multiplier: float | None,
    max_grad_norm: float | None,
    divisor: float | None,
    level: float,
    seed: int | None,
    when_refuted: Callable[[Watch], None] | None,
) -> Watch:
    """See :func:`coalmine.probing.watch.watch`."""
    private = hasattr(optimizer, "original_optimizer") and hasattr(optimizer, "noise_multiplier")
    base = optimizer.original_optimizer if private else optimizer
    if not isinstance(base, torch.optim.Optimizer):
        raise _validate.reject("optimizer", optimizer, "a torch optimizer, or one of Opacus")
    if private:
        claimed = float(optimizer.noise_multiplier) if noise_multiplier is None else noise_multiplier
        norm = float(optimizer.max_grad_norm) if max_grad_norm is None else max_grad_norm
    elif noise_multiplier is None or max_grad_norm is None or divisor is None:
        missing = (
            "noise_multiplier" if noise_multiplier is None else "max_grad_norm" if max_grad_norm is None else "divisor"
        )
        raise InvalidInputError(f"{missing} is missing: {type(optimizer).__name__} does not tell it")
    else:
        claimed, norm = noise_multiplier, max_grad_norm
    monitor = Watch(noise_multiplier=claimed, max_grad_norm=norm, level=level, seed=seed, when_refuted=when_refuted)
    tensors = _tensors(base, model, monitor, getattr(optimizer, "max_grad_norms", None), norm)
    current: list[_Step] = []

    def before_noise_is_forgotten(of: Any) -> None:
        """Opacus calls this between noise and step: its numbers are those that the noise was made with."""
        mean = of.loss_reduction == "mean"
        world = getattr(of, "world_size", 1)
        scale = float(of.expected_batch_size) * of.accumulated_iterations * world if mean else 1.0
        sums = [(one, getattr(one.parameter, "summed_grad", None)) for one in tensors]
        known = {one.name: one.along(value) for one, value in sums if value is not None}
        current[:] = [
            _Step(
                noise_multiplier=float(of.noise_multiplier) if noise_multiplier is None else noise_multiplier,
                max_grad_norm=float(of.max_grad_norm) if max_grad_norm is None else max_grad_norm,
                divisor=scale if divisor is None else divisor,
                known=known if world == 1 and len(known) == len(tensors) else None,
            )
        ]

    def before_step(*_: Any) -> None:
        """Every torch optimizer calls this just before it steps: the gradients are final."""
        if not private:
            current[:] = [_Step(claimed, norm, float(divisor or 1.0), None)]
        if current:
            _observe(monitor, tensors, current.pop())

    if private:
        _chain(optimizer, before_noise_is_forgotten, monitor)
    handle = base.register_step_pre_hook(before_step)
    monitor._release.append(handle.remove)
    return monitor


def _chain(optimizer: Any, hook: Callable[[Any], None], monitor: Watch) -> None:
    """Call the optimizer's own hook (the accountant's) first, then ours; on close put the first one back."""
    earlier = optimizer.step_hook

    def both(of: Any) -> None:
        if earlier is not None:
            earlier(of)
        hook(of)

    def release() -> None:
        if optimizer.step_hook is both:
            optimizer.attach_step_hook(earlier)

    optimizer.attach_step_hook(both)
    monitor._release.append(release)


def _tensors(base: Any, model: Any, monitor: Watch, norms: Any, norm: float) -> list[_Tensor]:
    """The parameters that the optimizer moves, each with a canary."""
    names = {} if model is None else {id(one): name for name, one in model.named_parameters()}
    found = [one for group in base.param_groups for one in group["params"] if one.requires_grad]
    if not found:
        raise InvalidInputError("the optimizer has no parameters that are trained: nothing can be watched")
    if any(hasattr(one, "to_local") for one in found):
        raise UnsupportedError("the parameters are sharded (FSDP): watch a training whose gradients are whole")
    if norms is not None and len(norms) != len(found):
        raise UnsupportedError("clipping per layer with frozen parameters in the optimizer: nothing can be watched")
    tensors = []
    for place, one in enumerate(found):
        kind = one.dtype if one.dtype in (torch.float32, torch.float64) else torch.float32
        signs = torch.from_numpy(monitor.new_signs(one.numel())).to(device=one.device, dtype=kind)
        share = 1.0 if norms is None else float(norms[place]) / norm
        name = names.get(id(one), f"tensor {place}")
        tensors.append(_Tensor(name=name, parameter=one, signs=signs, share=share))
    return tensors


def _observe(monitor: Watch, tensors: list[_Tensor], step: _Step) -> None:
    """Read the gradients along the canaries, and hand them to the monitor as numbers."""
    seen = [one for one in tensors if one.parameter.grad is not None]
    if not seen:
        return
    scale = step.divisor / step.max_grad_norm
    along = _numbers([one.along(one.parameter.grad) * scale for one in seen])  # type: ignore[arg-type]
    known = None
    if step.known is not None:
        known = _numbers([step.known[one.name] / step.max_grad_norm for one in seen])
    if any(one.share != 1.0 for one in tensors):
        # Clipping per layer: a row reaches its full norm only across all tensors, so there is one canary for all.
        weights = [one.share for one in seen]
        whole = {"all tensors": math.fsum(w * x for w, x in zip(weights, along, strict=True))}
        others = (
            None if known is None else {"all tensors": math.fsum(w * x for w, x in zip(weights, known, strict=True))}
        )
        monitor.observe(whole, others, noise_multiplier=step.noise_multiplier)
        return
    names = [one.name for one in seen]
    monitor.observe(
        dict(zip(names, along, strict=True)),
        None if known is None else dict(zip(names, known, strict=True)),
        noise_multiplier=step.noise_multiplier,
    )


def _numbers(values: list[torch.Tensor]) -> list[float]:
    """All numbers at once: one wait for the device instead of one for each."""
    return [float(one) for one in torch.stack([value.double() for value in values]).tolist()]
