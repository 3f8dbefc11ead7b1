"""Noise, moved: from what a carrier should show back to the draws that carry its noise."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from coalmine.probing.bench import Bench
from coalmine.probing.carriers import Reading, delta
from coalmine.probing.release import Observation
from coalmine.probing.tape_draws import Key
from coalmine.probing.vectors import distance, norm, pieces

_ALIKE = 64
"""Draws of one size at most that may add up to the noise of a carrier."""
_SPARE, _CODES = 8, 40
"""More numbers than draws, so that no chance explains a carrier; and the most runs for that."""


class Shifter:
    """Moves noise so that a carrier shows what it is told: from a carrier's coordinates back to those of the draws."""

    def __init__(self, bench: Bench, reading: Reading) -> None:
        self._bench, self._reading = bench, reading
        self._places: dict[str, tuple[Key, int, float]] = {}
        self.curved: dict[str, Key] = {}
        """Draws that move a released value by a curve, and no carrier."""
        self._find()

    @property
    def complete(self) -> bool:
        """Whether every noisy carrier has its draw."""
        return all(one.name in self._places for one in self._reading.noised)

    def free(self, numbers: int) -> list[Key]:
        """Draws of so many numbers that no carrier shows."""
        used = {place[0] for place in self._places.values()}
        keys = [key for key in self._bench.tape.noise_keys() if key not in used]
        return [key for key in keys if self._bench.tape.draw(key).value.numel() == numbers][:4]

    def hiding(
        self, shown: Observation, *, like: Observation, weights: Mapping[str, float] | None = None
    ) -> dict[Key, torch.Tensor]:
        """The shift of noise that makes the carriers of a run show what they show in another.

        Args:
            shown: the run.
            like: the other one.
            weights: how much of its shift each carrier shows, where that is not all.
        """
        found: dict[Key, torch.Tensor] = {}
        for name, (key, start, slope) in self._places.items():
            if name not in shown:
                continue
            weight = (weights or {}).get(name, 1.0)
            shift = found.setdefault(key, torch.zeros_like(self._bench.tape.draw(key).value).reshape(-1).cpu())
            for there, here in pieces(shown[name], like[name]):
                shift[start : start + len(there)] -= there.sub_(here).div_(weight).div_(slope)
                start += len(there)
        return found

    def _find(self) -> None:
        """Move every draw by codes of its own, twice or more often, and see which codes each carrier shows."""
        bench, reading = self._bench, self._reading
        keys = bench.tape.noise_keys()
        if reading.outside or not keys or len(keys) > 2000:
            return
        generator = torch.Generator().manual_seed(1)
        codes: list[dict[Key, torch.Tensor]] = []
        answers: list[dict[str, torch.Tensor]] = []
        for _ in range(self._codes(keys)):
            code = {}
            for key in keys:
                drawn = bench.tape.draw(key).value
                size = max(norm(one for (one,) in pieces(drawn)) / math.sqrt(max(drawn.numel(), 1)), 1e-6)
                made = torch.randn(drawn.numel(), generator=generator, dtype=torch.float64).mul_(size)
                code[key] = made.to(drawn.dtype)  # that is what the draw is shifted by
            codes.append(code)
            shown = bench.shifted(reading.base, code)
            answers.append({one.name: shown[one.name] for one in reading.noised if one.name in shown})
            del shown  # what else it showed
        used: dict[Key, int] = {}
        for carrier in reading.noised:
            if any(carrier.name not in one for one in answers):
                continue
            place = self._match([one.pop(carrier.name) for one in answers], carrier.plain, keys, codes, used)
            if place is not None:
                self._places[carrier.name] = place
                used[place[0]] = place[1] + carrier.numbers

    def _codes(self, keys: list[Key]) -> int:
        """How many codes tell the draws of every carrier apart: more numbers than draws that may add up to it."""
        drawn = [self._bench.tape.draw(key).value.numel() for key in keys]
        sizes = [one.numbers for one in self._reading.noised]
        wanted = max((-(-(min(drawn.count(size), _ALIKE) + _SPARE) // size) for size in sizes), default=2)
        return min(max(wanted, 2), _CODES)

    @staticmethod
    def _match(
        shown: list[torch.Tensor],
        plain: torch.Tensor,
        keys: list[Key],
        codes: list[dict[Key, torch.Tensor]],
        used: dict[Key, int],
    ) -> tuple[Key, int, float] | None:
        size, length = plain.numel(), math.hypot(*(distance(one, plain) for one in shown))
        # What no code moves, as behind a fixed mask, has no noise to be shifted; a row that moves it shows elsewhere.
        live = _live(shown, plain)
        fitting = [key for key in keys if codes[0][key].numel() >= size + used.get(key, 0)]
        for key in fitting:
            start = used.get(key, 0) if codes[0][key].numel() != size else 0
            parts = [one[key][start : start + size] for one in codes]
            parts = parts if live is None else [torch.where(live, part, 0.0) for part in parts]
            squares = sum(float(part @ part) for one in parts for (part,) in pieces(one))
            moved = [(one, plain, part) for one, part in zip(shown, parts, strict=True)]
            products = sum(float(a.sub_(b) @ c) for three in moved for a, b, c in pieces(*three))
            slope = products / squares if squares else 0.0
            if slope != 0.0:
                apart = [norm(a.sub_(b).sub_(c, alpha=slope) for a, b, c in pieces(*three)) for three in moved]
                if math.hypot(*apart) <= 1e-2 * length:
                    return key, start, slope
        # Several draws added up (as a generator does that is safe against rounding attacks): solve for their slopes.
        alike = [key for key in fitting if codes[0][key].numel() == size]
        if 1 < len(alike) <= _ALIKE and size * len(shown) > len(alike):
            matrix = torch.stack([torch.cat([one[key].double() for one in codes]) for key in alike], dim=1)
            matrix = matrix if live is None else matrix * live.repeat(len(codes))[:, None]
            answer = torch.cat([delta(one, plain) for one in shown])
            slopes = torch.linalg.lstsq(matrix, answer.reshape(-1, 1)).solution.reshape(-1)
            if float((matrix @ slopes - answer).norm()) <= 1e-2 * length:
                best = int(slopes.abs().argmax())
                return alike[best], 0, float(slopes[best])
        return None


def _live(shown: list[torch.Tensor], plain: torch.Tensor) -> torch.Tensor | None:
    """The numbers that one of the runs moves; None where these are all."""
    moved = torch.cat([x.sub_(y) != 0 for x, y in pieces(shown[0], plain)])
    for one in shown[1:]:
        if bool(moved.all()):
            break
        moved |= torch.cat([x.sub_(y) != 0 for x, y in pieces(one, plain)])
    return None if bool(moved.all()) else moved
