"""The tape's ear in torch: every random operation passes the dispatcher, with or without a generator of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

_NORMAL = {"normal", "normal_", "randn", "randn_like"}
_BY_VALUE = _NORMAL | {
    "bernoulli",
    "bernoulli_",
    "binomial",
    "cauchy",
    "cauchy_",
    "exponential",
    "exponential_",
    "geometric",
    "geometric_",
    "log_normal",
    "log_normal_",
    "multinomial",
    "poisson",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "random",
    "random_",
    "randperm",
    "uniform",
    "uniform_",
}
"""Operations whose result is the draw itself. Others mix it with their input and are replayed by generator state."""

_UNTAGGED = {"random_", "random", "binomial"}  # random, but torch does not tag them so
_cache: dict[Any, bool] = {}


def is_random(operation: Any) -> bool:
    """Whether an operation of torch draws random numbers.

    >>> is_random(torch.ops.aten.randn.default), is_random(torch.ops.aten.add.Tensor)
    (True, False)
    """
    found = _cache.get(operation)
    if found is None:
        name = operation._schema.name.rpartition("::")[2]
        found = torch.Tag.nondeterministic_seeded in operation.tags or name in _UNTAGGED
        _cache[operation] = found
    return found


class Listener(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Hands every random operation to the tape, and lets everything else pass."""

    def __init__(self, answer: Callable[[TorchRequest], Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._answer = answer

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Without the compiler's wrapper around every operation: it costs as much as the operation itself."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not is_random(func):
            return func(*args, **(kwargs or {}))
        request = TorchRequest(func, args, kwargs or {})
        return request.give(self._answer(request))


class TorchRequest:
    """A random operation that a step asks for."""

    def __init__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._func, self._args, self._kwargs = func, args, kwargs
        self._name = func._schema.name.rpartition("::")[2]
        self.operation = f"torch.{self._name}"
        self.by_value = self._name in _BY_VALUE
        self.normal = self._law() if self._name in _NORMAL else None
        self._result: Any = None
        self._drawn = False

    def _law(self) -> tuple[Any, Any]:
        """Mean and standard deviation of a normal draw."""
        if self._name in ("randn", "randn_like"):
            return 0.0, 1.0
        given = self._args[1:] if self._name == "normal_" else self._args
        overload = self._func._overloadname
        if overload == "out" and self._name == "normal":  # the functional twin of normal_
            given = self._args[1:]
        mean = given[0] if given else self._kwargs.get("mean", 0.0)
        std = given[1] if len(given) > 1 else self._kwargs.get("std", 1.0)
        if overload == "default" and self._name == "normal":
            mean = self._args[1] if len(self._args) > 1 else self._kwargs.get("mean", 0.0)
            std = self._args[2] if len(self._args) > 2 else self._kwargs.get("std", 1.0)
        return mean, std

    def shape(self) -> tuple[int, ...] | None:
        """From the tensor that is filled or imitated, or from the size that is asked for."""
        out = self._kwargs.get("out")
        if out is not None:
            return tuple(out.shape)
        if self._name in ("randperm",):
            return (int(self._args[0]),)
        if self._name == "multinomial":
            return None
        tensors = [one for one in self._args if isinstance(one, torch.Tensor)]
        if tensors:
            return tuple(np.broadcast_shapes(*(tuple(one.shape) for one in tensors)))
        sizes = [one for one in self._args if isinstance(one, (list, tuple))]
        if not sizes and "size" in self._kwargs:
            sizes = [self._kwargs["size"]]
        return tuple(int(one) for one in sizes[0]) if sizes else None

    def live(self) -> torch.Tensor:
        """Draw, as the step would without the tape."""
        self._result, self._drawn = self._func(*self._args, **self._kwargs), True
        return self._result if isinstance(self._result, torch.Tensor) else self._result[0]

    def seeded(self, seed: int) -> torch.Tensor:
        """Draw from a generator with this seed, without touching the step's own."""
        state = torch.get_rng_state()
        try:
            torch.default_generator.manual_seed(seed)
            kwargs = {name: value for name, value in self._kwargs.items() if name != "generator"}
            func = self._func
            if "generator" in self._kwargs and self._func._overloadname == "generator":
                func = self._func._overloadpacket.default
            self._result, self._drawn = func(*self._args, **kwargs), True
        finally:
            torch.set_rng_state(state)
        return self._result if isinstance(self._result, torch.Tensor) else self._result[0]

    def _generator(self) -> torch.Generator:
        found = self._kwargs.get("generator")
        return found if found is not None else torch.default_generator

    def state(self) -> Any:
        """The state of the generator."""
        return self._generator().get_state()

    def again(self, state: Any) -> Any:
        """Draw from that state, and leave the generator as it was."""
        generator = self._generator()
        before = generator.get_state()
        try:
            generator.set_state(state)
            return self.live()
        finally:
            generator.set_state(before)

    def seed(self) -> int | None:
        """The generator's seed, if it is where that put it: nothing was drawn since."""
        generator = self._generator()
        found = generator.initial_seed()
        fresh = torch.Generator(generator.device).manual_seed(found)
        return found if torch.equal(fresh.get_state(), generator.get_state()) else None

    def give(self, value: Any) -> Any:
        """The operation's result with this draw in it: written in place, or returned."""
        if not self.by_value:
            return self._result
        filled = self._kwargs.get("out")
        if filled is None and self._name.endswith("_"):
            filled = self._args[0]
        if filled is not None:
            if self._result is not filled or value is not filled:
                filled.copy_(value)
            return filled
        if self._drawn and value is self._result:
            return value
        dtype, device = self._kwargs.get("dtype"), self._kwargs.get("device")
        return value.to(device=device or value.device, dtype=dtype or value.dtype)
