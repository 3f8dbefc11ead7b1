"""Noise, moved: from what a carrier should show back to the draws that carry its noise."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from coalmine.probing.bench import Bench
from coalmine.probing.carriers import Reading, delta
from coalmine.probing.release import Observation
from coalmine.probing.tape import Key

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

    def hiding(self, moves: Mapping[str, torch.Tensor]) -> dict[Key, torch.Tensor]:
        """The shift of noise that takes these moves of the carriers back."""
        found: dict[Key, torch.Tensor] = {}
        for name, move in moves.items():
            if name in self._places:
                key, start, slope = self._places[name]
                drawn = self._bench.tape.draw(key).value
                shift = found.setdefault(key, torch.zeros(drawn.numel(), dtype=torch.float64))
                shift[start : start + len(move)] -= move / slope
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
                size = max(float(drawn.double().square().mean().sqrt()), 1e-6) if drawn.numel() else 1.0
                code[key] = torch.randn(drawn.numel(), generator=generator, dtype=torch.float64).mul_(size)
            codes.append(code)
            answers.append(self._answer(bench.shifted(reading.base, code)))
        used: dict[Key, int] = {}
        for carrier in reading.noised:
            if any(carrier.name not in one for one in answers):
                continue
            shown = [one.pop(carrier.name) for one in answers]
            place = self._match(shown, keys, codes, used)
            if place is not None:
                self._places[carrier.name] = place
                used[place[0]] = place[1] + len(shown[0])

    def _answer(self, shown: Observation) -> dict[str, torch.Tensor]:
        """How far each carrier moved."""
        plain = self._reading.plain
        return {one.name: delta(shown[one.name], plain[one.name]) for one in self._reading.noised if one.name in shown}

    def _codes(self, keys: list[Key]) -> int:
        """How many codes tell the draws of every carrier apart: more numbers than draws that may add up to it."""
        drawn = [self._bench.tape.draw(key).value.numel() for key in keys]
        sizes = [one.response.numel() for one in self._reading.noised]
        wanted = max((-(-(min(drawn.count(size), _ALIKE) + _SPARE) // size) for size in sizes), default=2)
        return min(max(wanted, 2), _CODES)

    @staticmethod
    def _match(
        shown: list[torch.Tensor], keys: list[Key], codes: list[dict[Key, torch.Tensor]], used: dict[Key, int]
    ) -> tuple[Key, int, float] | None:
        size, length = len(shown[0]), math.sqrt(sum(float(one @ one) for one in shown))
        fitting = [key for key in keys if codes[0][key].numel() >= size + used.get(key, 0)]
        for key in fitting:
            start = used.get(key, 0) if codes[0][key].numel() != size else 0
            parts = [one[key][start : start + size] for one in codes]
            squares = sum(float(part @ part) for part in parts)
            slope = sum(float(one @ part) for one, part in zip(shown, parts, strict=True)) / squares if squares else 0.0
            if slope != 0.0:
                apart = [float(one.sub(part, alpha=slope).norm()) for one, part in zip(shown, parts, strict=True)]
                if math.hypot(*apart) <= 1e-2 * length:
                    return key, start, slope
        # Several draws added up (as a generator does that is safe against rounding attacks): solve for their slopes.
        alike = [key for key in fitting if codes[0][key].numel() == size]
        if 1 < len(alike) <= _ALIKE and size * len(shown) > len(alike):
            matrix = torch.stack([torch.cat([one[key] for one in codes]) for key in alike], dim=1)
            answer = torch.cat(shown)
            slopes = torch.linalg.lstsq(matrix, answer.reshape(-1, 1)).solution.reshape(-1)
            if float((matrix @ slopes - answer).norm()) <= 1e-2 * length:
                best = int(slopes.abs().argmax())
                return alike[best], 0, float(slopes[best])
        return None
