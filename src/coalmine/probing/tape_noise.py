"""Noise on the tape: a normal draw, played again about its mean as it was, silent, scaled or shifted."""

from __future__ import annotations

from typing import Any

import torch


def copied(normal: tuple[Any, Any] | None) -> tuple[Any, Any] | None:
    """Mean and standard deviation as they are now, whatever the step writes into them later."""
    if normal is None:
        return None
    mean, std = (one.detach().clone() if isinstance(one, torch.Tensor) else one for one in normal)
    return mean, std


def unit(value: torch.Tensor, mean: Any, std: Any) -> torch.Tensor:
    """A draw in standard deviations from its mean."""
    spread = torch.as_tensor(std, dtype=value.dtype, device=value.device)
    apart: torch.Tensor = value - mean
    return apart.div_(torch.where(spread > 0, spread, 1.0)).masked_fill_(spread <= 0, 0.0)


def scaled(value: torch.Tensor, normal: tuple[Any, Any] | None, factor: float) -> torch.Tensor:
    """A draw scaled about its mean."""
    if factor == 1.0 or normal is None:
        return value
    apart: torch.Tensor = value - normal[0]
    return apart.mul_(factor).add_(normal[0]).to(value.dtype)


def shifted(value: torch.Tensor, shift: torch.Tensor | None) -> torch.Tensor:
    """A draw with something added to it."""
    return value if shift is None else value + shift.to(value.dtype).reshape(value.shape)


def about_its_mean(
    value: torch.Tensor, *, now: tuple[Any, Any] | None, then: tuple[Any, Any] | None, factor: float
) -> torch.Tensor:
    """The recorded deviation from the mean, about the mean that is asked for now."""
    if _equal(now, then) and factor == 1.0:
        return value
    assert now is not None
    assert then is not None
    mean, std = now
    old_mean, old_std = then
    if factor == 0.0 and not isinstance(mean, torch.Tensor):
        return torch.full_like(value, mean)
    apart = unit(value, old_mean, old_std)
    if isinstance(mean, torch.Tensor) or isinstance(std, torch.Tensor):
        moved: torch.Tensor = mean + factor * std * apart
        return moved.to(value.dtype)
    return apart.mul_(factor * std).add_(mean)


def _equal(now: tuple[Any, Any] | None, then: tuple[Any, Any] | None) -> bool:
    if now is None or then is None:
        return now is then
    return all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) else a is b or _same(a, b)
        for a, b in zip(now, then, strict=True)
    )


def _same(a: Any, b: Any) -> bool:
    return not isinstance(a, torch.Tensor) and not isinstance(b, torch.Tensor) and bool(a == b)
