"""Is what is released the noised sum itself, or a function of it?

What comes after the noise is harmless: a threshold, the largest numbers alone, a sign, a limit. But rows then do not
add up in the release, and noise has another size and law there, whatever the step does before. So a tensor counts as
the noised sum only where noise moves it in proportion, whichever noise it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from coalmine.probing import text
from coalmine.probing.bench import Bench, World
from coalmine.probing.noise import TOLERANCE
from coalmine.probing.release import Observation
from coalmine.probing.vectors import distance, residual

FACTORS = (2.0, -1.0, 0.3, -0.15)
"""Of the recorded noise: small factors bring numbers to where a threshold holds them back, −1 to the other side."""
_SHIFTS, _LENGTHS = 12, (1.0, 0.1, 3.0)
"""Noise that is shifted at random so often, by these lengths in standard deviations."""
_RENEWED = 24
"""Runs with new noise in which every number must stay still that is said to carry none."""
_FAR = (1.0, 30.0)


def in_proportion(
    bench: Bench, base: World, silent: Observation, plain: Observation, names: Sequence[str]
) -> list[str]:
    """Of some tensors those that noise moves in proportion, at every factor."""
    left = [name for name in names if not name.endswith(text.MARK)]
    for factor in FACTORS if left else ():
        shown = bench.scaled(base, factor)
        left = [
            name
            for name in left
            if name in shown
            and shown[name].shape == plain[name].shape
            and residual(shown[name], silent[name], plain[name], silent[name], factor)
            <= TOLERANCE * distance(plain[name], silent[name]) + 4.0 * max(_error(plain[name]), _error(shown[name]))
        ]
    return left


def _error(value: torch.Tensor) -> float:
    if not value.is_floating_point():
        return 0.0
    return float(torch.finfo(value.dtype).eps * torch.linalg.vector_norm(value, dtype=torch.float64))


def with_own_noise(
    bench: Bench, base: World, plain: Observation, curved: Sequence[str], linear: Sequence[str]
) -> list[str]:
    """Of tensors that do not follow noise in proportion, those with draws of their own, which move no other tensor.

    Those without may see noise by way of other parameters, as a second optimizer does: that says nothing of them.

    Args:
        bench: the step.
        base: the rows.
        plain: what it shows with the recorded noise.
        curved: the tensors in question, at the place where the private sum should be.
        linear: tensors that do follow noise in proportion.
    """
    found: list[str] = []
    sizes = {name: plain[name].numel() for name in (plain.gradients or plain.released)}
    total = sum(sizes.values())
    keys = [(key, bench.tape.draw(key).value.numel()) for key in bench.tape.noise_keys()]
    for name in curved:
        start = sum(size for other, size in list(sizes.items())[: list(sizes).index(name)]) if name in sizes else 0
        count = plain[name].numel()
        for key, drawn in [(key, drawn) for key, drawn in keys if drawn in (count, total)][:_SHIFTS]:
            first = start if drawn != count else 0
            shift = torch.zeros(drawn, dtype=torch.float64)
            shift[first : first + count] = 3.0 * float(bench.tape.draw(key).value.double().abs().mean())
            shown = bench.shifted(base, {key: shift})
            if not shown.error and _moves(shown, plain, name) and not any(_moves(shown, plain, one) for one in linear):
                found.append(name)
                break
    return found


def _moves(shown: Observation, plain: Observation, name: str) -> bool:
    return name in shown and shown[name].shape == plain[name].shape and not torch.equal(shown[name], plain[name])


def bent(bench: Bench, base: World, plain: Observation, names: Sequence[str]) -> str:
    """A tensor that noise, shifted at random, does not move in proportion; empty where there is none.

    Asked only where a fault was seen, so that a right step, whose threshold no earlier run came upon, is not refuted.
    """
    generator = torch.Generator().manual_seed(2)
    for number in range(_SHIFTS):
        length = _LENGTHS[number % len(_LENGTHS)]
        shift = {}
        for key in bench.tape.noise_keys():
            drawn = bench.tape.draw(key).value
            size = length * max(float(drawn.double().square().mean().sqrt()) if drawn.numel() else 0.0, 1e-6)
            made = torch.randn(drawn.numel(), generator=generator, dtype=torch.float64).mul_(size)
            shift[key] = made.to(drawn.dtype)
        once = bench.shifted(base, shift)
        back = bench.shifted(base, {key: -one for key, one in shift.items()})
        for name in names:
            if name not in once or name not in back:
                continue
            off = residual(once[name], plain[name], back[name], plain[name], -1.0)
            error = 8.0 * max(_error(one) for one in (plain[name], once[name], back[name]))
            if off > TOLERANCE * distance(once[name], plain[name]) + error:
                return name
    return ""


def touched_at_last(bench: Bench, base: World, silent: Observation, name: str, known: torch.Tensor) -> torch.Tensor:
    """Which numbers of a tensor noise moves, seen with much more noise: what comes after it may hold some of them."""
    moved = known.clone()
    for number in range(_RENEWED):
        shown = bench.renewed(base, factor=_FAR[number % len(_FAR)])
        if name in shown and shown[name].shape == silent[name].shape:
            moved |= (shown[name] != silent[name]).reshape(-1).cpu()
    return moved


def grid(plain: Observation, names: Sequence[str]) -> str:
    """The type with 16 bits that every number of these tensors has a value of, though it is kept in a wider one."""
    for kind in (torch.float16, torch.bfloat16):
        values = [plain[name] for name in names]
        wider = [one for one in values if one.is_floating_point() and torch.finfo(one.dtype).bits > 16]
        if wider and all(torch.equal(one, one.to(kind).to(one.dtype)) for one in wider):
            return str(kind).removeprefix("torch.")
    return ""
