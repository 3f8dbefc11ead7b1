"""The tape's ear in NumPy and in Python's ``random``: listening generators in the place of the step's own.

A listening generator shares the bits of the one whose place it takes, so live draws are the user's own. Places are the
modules' functions (``np.random.normal``, ``random.gauss``) and every variable, closure and attribute that the step can
reach; generators that the step makes while it runs listen too.
"""

from __future__ import annotations

import contextlib
import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

# While a tape listens, the names in the modules are those of listening generators: these are the originals.
Generator, RandomState, Random = np.random.Generator, np.random.RandomState, random.Random
_NORMAL = {"normal", "standard_normal", "randn", "gauss", "normalvariate"}
_BY_VALUE = _NORMAL | {
    "beta",
    "binomial",
    "chisquare",
    "exponential",
    "gamma",
    "geometric",
    "gumbel",
    "integers",
    "laplace",
    "hypergeometric",
    "logistic",
    "lognormal",
    "negative_binomial",
    "pareto",
    "poisson",
    "power",
    "rand",
    "randint",
    "random",
    "random_sample",
    "rayleigh",
    "standard_cauchy",
    "standard_exponential",
    "standard_gamma",
    "standard_t",
    "triangular",
    "uniform",
    "vonmises",
    "wald",
    "weibull",
    "zipf",
    "betavariate",
    "binomialvariate",
    "expovariate",
    "gammavariate",
    "lognormvariate",
    "paretovariate",
    "randrange",
    "vonmisesvariate",
    "weibullvariate",
}
_BY_STATE = {
    "bytes",
    "choice",
    "choices",
    "dirichlet",
    "getrandbits",
    "multinomial",
    "multivariate_normal",
    "permutation",
    "permuted",
    "randbytes",
    "sample",
    "shuffle",
}
"""Methods that mix a draw with their input; they are replayed by generator state."""


_SEEDED = "seed_of_the_step"
"""The attribute of a listening generator that holds the number which the step seeded it with."""


class ArrayRequest:
    """A method of a generator of NumPy or Python that a step calls."""

    def __init__(self, owner: Any, name: str, draw: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> None:
        self._owner, self._draw, self._args, self._kwargs = owner, draw, args, kwargs
        library = "random" if isinstance(owner, Random) else "numpy"
        self.operation = f"{library}.{name}"
        self.by_value = name in _BY_VALUE
        self.normal = self._law(name) if name in _NORMAL else None
        self._name = name
        self._kind: Any = None

    def _law(self, name: str) -> tuple[Any, Any]:
        if name in ("standard_normal", "randn"):
            return 0.0, 1.0
        names = ("mu", "sigma") if isinstance(self._owner, Random) else ("loc", "scale")
        given = [*self._args[:2], None, None]
        mean = given[0] if given[0] is not None else self._kwargs.get(names[0], 0.0)
        std = given[1] if given[1] is not None else self._kwargs.get(names[1], 1.0)
        return tuple(  # type: ignore[return-value]
            torch.from_numpy(np.array(one, dtype=np.float64)) if isinstance(one, np.ndarray) else float(one)
            for one in (mean, std)
        )

    def shape(self) -> tuple[int, ...] | None:
        """Known only once drawn; a draw from a seed of ours tells it."""
        drawn = self._from(0)
        self._kind = drawn
        return tuple(int(one) for one in np.shape(drawn))

    def live(self) -> Any:
        """Draw, as the step would without the tape."""
        return self._tensor(self._draw(*self._args, **self._kwargs))

    def _tensor(self, value: Any) -> Any:
        self._kind = value
        return torch.from_numpy(np.array(value)) if self.by_value else value

    def _from(self, seed: int) -> Any:
        before = self.state()
        try:
            if isinstance(self._owner, Generator):
                self._owner.bit_generator.state = type(self._owner.bit_generator)(seed).state
            else:
                self._owner.seed(seed % 2**32)
            return self._draw(*self._args, **self._kwargs)
        finally:
            self._restore(before)

    def seeded(self, seed: int) -> Any:
        """Draw from a generator with this seed, without touching the step's own."""
        return self._tensor(self._from(seed))

    def state(self) -> Any:
        """The state of the generator."""
        if isinstance(self._owner, Generator):
            return self._owner.bit_generator.state
        return self._owner.get_state() if isinstance(self._owner, RandomState) else self._owner.getstate()

    def _restore(self, state: Any) -> None:
        if isinstance(self._owner, Generator):
            self._owner.bit_generator.state = state
        elif isinstance(self._owner, RandomState):
            self._owner.set_state(state)
        else:
            self._owner.setstate(state)

    def again(self, state: Any) -> Any:
        """Draw from that state, and leave the generator as it was."""
        before = self.state()
        try:
            self._restore(state)
            return self._draw(*self._args, **self._kwargs)
        finally:
            self._restore(before)

    def seed(self) -> int | None:
        """The number with which the step seeded the generator, if it did."""
        found: int | None = getattr(self._owner, _SEEDED, None)
        return found

    def give(self, value: Any) -> Any:
        """The draw in the form that the method would have given it."""
        if not self.by_value:
            return value
        if isinstance(self._kind, np.ndarray):
            return value.numpy().astype(self._kind.dtype, copy=False)
        return type(self._kind)(value.item()) if self._kind is not None else value.item()


class _Ear:
    """Where listening generators send their requests while a tape runs; a method's inner calls are its own business."""

    def __init__(self) -> None:
        self.answer: Callable[[Any], Any] | None = None
        self._inside = False

    def ask(self, owner: Any, name: str, draw: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        """The tape's answer to a call."""
        if self.answer is None or self._inside:
            return draw(*args, **kwargs)
        self._inside = True
        try:
            request = ArrayRequest(owner, name, draw, args, kwargs)
            return request.give(self.answer(request))
        finally:
            self._inside = False


_ear = _Ear()


def _listening(base: type) -> type:
    """A subclass of a generator class whose drawing methods ask the tape."""

    def method(name: str) -> Callable[..., Any]:
        inherited = getattr(base, name)

        def asking(self: Any, *args: Any, **kwargs: Any) -> Any:
            return _ear.ask(self, name, lambda *a, **k: inherited(self, *a, **k), args, kwargs)

        return asking

    def seed(self: Any, *args: Any, **kwargs: Any) -> None:
        base.seed(self, *args, **kwargs)  # type: ignore[attr-defined]
        setattr(self, _SEEDED, _number(*args, *kwargs.values()))

    names = [name for name in sorted(_BY_VALUE | _BY_STATE) if hasattr(base, name)]
    methods = {name: method(name) for name in names} | ({"seed": seed} if hasattr(base, "seed") else {})
    return type(f"Listening{base.__name__}", (base,), methods)


def _number(seed: Any = None, *_: Any) -> int | None:
    """A seed that somebody wrote down or counted, as a number; None for none, and for objects that hold a secret."""
    if isinstance(seed, (int, np.integer)):
        return int(seed)
    written = isinstance(seed, (float, str, bytes, list, tuple, np.ndarray))
    return zlib.crc32(repr(seed).encode()) if written else None


def _made(base: Any) -> Any:
    """Makes listening generators as a class does, and notes which were given a seed."""

    class Made(base):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            setattr(self, _SEEDED, _number(*args, *kwargs.values()))

    Made.__name__ = base.__name__
    return Made


ListeningGenerator = _listening(Generator)
ListeningRandomState = _made(_listening(RandomState))
ListeningRandom = _made(_listening(Random))


def _default_rng(seed: Any = None) -> Any:
    """Like NumPy's, but listening."""
    found = ListeningGenerator(_MAKE(seed).bit_generator)
    setattr(found, _SEEDED, _number(seed))
    return found


_MAKE = np.random.default_rng
_SHARED = np.random.mtrand._rand


class _Twins:
    """The listening twin of each generator of a run."""

    def __init__(self) -> None:
        self._twins: dict[int, Any] = {}
        self._pairs: list[tuple[random.Random, random.Random]] = []

    def of(self, value: Any) -> Any:
        """What a place holds while the tape listens."""
        for original, twin in _CLASSES:
            if value is original:
                return twin
        if isinstance(value, (Generator, RandomState, Random)):
            return self._generator(value)
        return getattr(self._generator(value.__self__), value.__name__)

    def _generator(self, owner: Any) -> Any:
        found = self._twins.get(id(owner))
        if found is None:
            if isinstance(owner, Generator):
                found = ListeningGenerator(owner.bit_generator)
            elif isinstance(owner, RandomState):
                found = ListeningRandomState(owner._bit_generator)
            elif isinstance(owner, random.SystemRandom):
                return owner  # the operating system's: no state, so what it gives cannot be had again
            else:
                found = ListeningRandom()
                found.setstate(owner.getstate())
                self._pairs.append((owner, found))
            self._twins[id(owner)] = found
        return found

    def close(self) -> None:
        """Python's generators cannot share bits: the state goes back to the one whose place was taken."""
        for owner, twin in self._pairs:
            owner.setstate(twin.getstate())


_CLASSES: tuple[tuple[Any, Any], ...] = (
    (np.random.default_rng, _default_rng),
    (RandomState, ListeningRandomState),
    (Generator, ListeningGenerator),
    (random.Random, ListeningRandom),
)
_PLACES: list[tuple[Any, str, Any]] = [
    (random, "Random", Random),
    (random, "seed", random.seed),
    (np.random, "seed", _SHARED.seed),
    *((random, name, getattr(random, name)) for name in sorted(_BY_VALUE | _BY_STATE) if hasattr(random, name)),
    *((np.random, name, getattr(np.random, name)) for name in ("default_rng", "RandomState", "Generator")),
    *((np.random, name, getattr(_SHARED, name)) for name in sorted(_BY_VALUE | _BY_STATE) if hasattr(_SHARED, name)),
]


@contextlib.contextmanager
def listening(answer: Callable[[Any], Any], references: Sequence[Any]) -> Iterator[None]:
    """Put listening generators into every place, and take them out again."""
    twins = _Twins()
    before = _ear.answer
    old = [(module, name, getattr(module, name)) for module, name, _ in _PLACES]
    try:
        for module, name, value in _PLACES:
            setattr(module, name, twins.of(value))
        np.random.mtrand._rand = twins.of(_SHARED)  # what scipy asks
        for one in references:
            one.put(twins.of(one.value))
        _ear.answer = answer
        yield
    finally:
        _ear.answer = before
        for module, name, value in old:
            setattr(module, name, value)
        np.random.mtrand._rand = _SHARED
        for one in references:
            one.put(one.value)
        twins.close()
