"""A step's jaxpr, run again with its noise scaled, and with every key that it draws from on record.

JAX draws nothing that does not follow from a key, so a step with the same key is the same step. What is drawn stands
in its jaxpr: functions of ``jax.random`` leave their name there, down to the primitive ``random_bits``, which takes the
key.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax.extend import core

NOISE = {"_normal", "_normal_real", "_laplace", "_truncated_normal", "_cauchy", "_logistic", "_t",
         "_multivariate_normal", "_rademacher"}  # fmt: skip
"""Functions of ``jax.random`` whose numbers scatter around zero: what is added to hide a row."""
_INLINE = {"jit", "pjit", "closed_call", "core_call", "remat", "checkpoint", "remat2", "custom_jvp_call",
           "custom_vjp_call", "custom_vjp_call_jaxpr"}  # fmt: skip
Path = tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Draw:
    """A place in a jaxpr where noise is drawn: by which function, in which shape, at which line of the user's."""

    path: Path
    function: str
    shape: tuple[int, ...]
    line: str

    def __str__(self) -> str:
        return f"{self.function}{self.shape}" + (f" at {self.line}" if self.line else "")


@dataclasses.dataclass(frozen=True)
class Drawn:
    """Bits that are drawn in a run: from which keys (rows of numbers), by which place (None if they are no noise)."""

    keys: Any
    draw: int | None


class Replay:
    """A traced step that can be run with each of its draws of noise scaled."""

    def __init__(self, traced: Any) -> None:
        self.traced = traced
        self.draws: list[Draw] = list(_find(traced.jaxpr, ()))
        self._numbers = {one.path: number for number, one in enumerate(self.draws)}

    def run(self, values: Sequence[Any], factors: Any) -> tuple[list[Any], list[Drawn]]:
        """The outputs with the noise of draw number n multiplied by ``factors[n]``, and what was drawn on the way.

        Works under ``jit`` and ``vmap``. Draws inside ``while`` and ``cond`` are scaled, but their keys are not seen.
        """

        def scale(draw: int, outputs: list[Any]) -> list[Any]:
            return [one * factors[draw].astype(one.dtype) for one in outputs]

        run = _Run(self._numbers, scale)
        return run.closed(self.traced, values, ()), run.drawn


def _closed(jaxpr: Any) -> Any:
    return jaxpr if isinstance(jaxpr, core.ClosedJaxpr) else core.ClosedJaxpr(jaxpr, ())


def _inner(eqn: Any) -> list[tuple[str, Any]]:
    """The jaxprs inside an equation, each with its name."""
    found = []
    for name, value in eqn.params.items():
        for number, one in enumerate(value if isinstance(value, (tuple, list)) else [value]):
            if isinstance(one, (core.ClosedJaxpr, core.Jaxpr)):
                found.append((f"{name}{number}", _closed(one)))
    return found


def _find(jaxpr: Any, path: Path) -> Iterator[Draw]:
    """Every place where noise is drawn, in the order of the text."""
    for number, eqn in enumerate(jaxpr.eqns):
        if _is_noise(eqn):
            shape = tuple(eqn.outvars[0].aval.shape)
            yield Draw((*path, number), eqn.params["name"].lstrip("_"), shape, _line(eqn))
        else:
            for name, inner in _inner(eqn):
                yield from _find(inner.jaxpr, (*path, number, name))


def _is_noise(eqn: Any) -> bool:
    return eqn.primitive.name in ("jit", "pjit") and eqn.params.get("name") in NOISE


def _draws_bits(jaxpr: Any) -> bool:
    return any(
        eqn.primitive.name == "random_bits" or any(_draws_bits(one.jaxpr) for _, one in _inner(eqn))
        for eqn in jaxpr.eqns
    )


def _line(eqn: Any) -> str:
    """The user's line behind an equation: the innermost one outside JAX and its libraries."""
    frames = getattr(eqn.source_info.traceback, "frames", ())
    for frame in frames:
        name = str(frame.file_name)
        if "site-packages" not in name and "<" not in name:
            return f"{name.rpartition('/')[2]}:{frame.line_num}"
    return ""


class _Run:
    """One run through a jaxpr."""

    def __init__(self, numbers: dict[Path, int], change: Callable[[int, list[Any]], list[Any]]) -> None:
        self._numbers, self._change = numbers, change
        self._draw: int | None = None
        self.drawn: list[Drawn] = []

    def closed(self, closed: Any, values: Sequence[Any], path: Path) -> list[Any]:
        """A jaxpr with its constants."""
        known: dict[Any, Any] = {}

        def read(atom: Any) -> Any:
            return atom.val if isinstance(atom, core.Literal) else known[atom]

        jaxpr = closed.jaxpr
        known.update(zip(jaxpr.constvars, closed.consts, strict=True))
        known.update(zip(jaxpr.invars, values, strict=True))
        for number, eqn in enumerate(jaxpr.eqns):
            outputs = self._equation(eqn, [read(one) for one in eqn.invars], (*path, number))
            known.update(zip(eqn.outvars, outputs, strict=True))
        return [read(one) for one in jaxpr.outvars]

    def _equation(self, eqn: Any, values: list[Any], path: Path) -> list[Any]:
        if eqn.primitive.name == "random_bits":
            data = jax.random.key_data(values[0])
            self.drawn.append(Drawn(data.reshape(-1, data.shape[-1]), self._draw))
        if path in self._numbers and self._draw is None:
            self._draw = self._numbers[path]
            try:
                outputs = self._followed(eqn, values, path)
            finally:
                self._draw = None
            return self._change(self._numbers[path], outputs)
        return self._followed(eqn, values, path)

    def _followed(self, eqn: Any, values: list[Any], path: Path) -> list[Any]:
        """An equation as it stands, or from inside where something is drawn there."""
        name = eqn.primitive.name
        inner = _inner(eqn)
        if not any(_draws_bits(one.jaxpr) for _, one in inner):
            return _bound(eqn, values)
        if name in _INLINE:
            return self.closed(inner[0][1], values, (*path, inner[0][0]))
        if name == "scan":
            return self._scan(eqn, values, path)
        if name == "while":
            return self._while(eqn, values, path)
        if name == "cond":
            return self._cond(eqn, values, path)
        return _bound(eqn, values)  # noise in there can be replayed, but not scaled

    def _scan(self, eqn: Any, values: list[Any], path: Path) -> list[Any]:
        fixed, carried = eqn.params["num_consts"], eqn.params["num_carry"]
        body, length = eqn.params["jaxpr"], eqn.params["length"]
        consts, start, rows = values[:fixed], values[fixed : fixed + carried], values[fixed + carried :]

        before = self.drawn
        meta: list[int | None] = []

        def turn(carry: Any, row: Any) -> tuple[list[Any], tuple[list[Any], list[Any]]]:
            self.drawn = []
            outputs = self.closed(body, [*consts, *carry, *row], (*path, "jaxpr0"))
            meta[:] = [one.draw for one in self.drawn]
            return outputs[:carried], (outputs[carried:], [one.keys for one in self.drawn])

        last, (stacked, keys) = jax.lax.scan(turn, start, rows, length=length, reverse=eqn.params["reverse"])
        self.drawn = before + [
            Drawn(one.reshape(-1, one.shape[-1]), draw) for one, draw in zip(keys, meta, strict=True)
        ]
        return [*last, *stacked]

    def _while(self, eqn: Any, values: list[Any], path: Path) -> list[Any]:
        asks, works = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
        question, work, state = values[:asks], values[asks : asks + works], values[asks + works :]

        def goes_on(carry: Any) -> Any:
            with self._unrecorded():
                return self.closed(eqn.params["cond_jaxpr"], [*question, *carry], (*path, "cond_jaxpr0"))[0]

        def turn(carry: Any) -> list[Any]:
            with self._unrecorded():
                return self.closed(eqn.params["body_jaxpr"], [*work, *carry], (*path, "body_jaxpr0"))

        return list(jax.lax.while_loop(goes_on, turn, state))

    def _cond(self, eqn: Any, values: list[Any], path: Path) -> list[Any]:
        branches = eqn.params["branches"]

        def way(number: int) -> Callable[..., list[Any]]:
            def goes(*given: Any) -> list[Any]:
                with self._unrecorded():
                    return self.closed(branches[number], given, (*path, f"branches{number}"))

            return goes

        ways = [way(number) for number in range(len(branches))]
        return list(jax.lax.switch(values[0], ways, *values[1:]))

    @contextlib.contextmanager
    def _unrecorded(self) -> Iterator[None]:
        """Keys that are drawn from in a loop or a branch live in a trace of its own, and must not leave it."""
        before, self.drawn = self.drawn, []
        try:
            yield
        finally:
            self.drawn = before


def _bound(eqn: Any, values: list[Any]) -> list[Any]:
    """An equation as JAX would run it."""
    given = eqn.primitive.get_bind_params(eqn.params)
    functions, params = given if isinstance(given, tuple) else ((), given)  # a pair before JAX 0.10
    outputs = eqn.primitive.bind(*functions, *values, **params)
    return list(outputs) if eqn.primitive.multiple_results else [outputs]
