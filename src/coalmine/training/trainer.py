"""Trains trials, each in its world; how many are stacked together is a matter of speed and never changes a result."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from coalmine import _validate
from coalmine.errors import InvalidInputError, UnsupportedError
from coalmine.records import Sampling
from coalmine.roles import Observer, View
from coalmine.training import backends, compiled_stages, fused, networks, stages
from coalmine.training.batching import width
from coalmine.training.canary import ExampleCanary, GradientCanary, GradientRows, Neighbours
from coalmine.training.config import GivenWeights, TrainingConfig
from coalmine.training.data import AlikeRows, Dataset
from coalmine.training.job import Job
from coalmine.training.layers import Embedding
from coalmine.training.modules import FromModule, check_independence
from coalmine.training.pair import check_pair
from coalmine.training.stack import RowTable, Stack, StackResult, make_table
from coalmine.training.stages import StageTable

CPU_STACK = 16
"""Models stacked on a CPU: enough to spread the cost of a call, few enough to stay in the cache."""
GPU_STACK = 1024
"""Models stacked on a GPU on the way that any network can take."""

_ROOM_FOR_TWO = 2**35
"""Bytes of a GPU's memory from which it has two trainings at once: a stack is given 8 GiB, by stages up to 32."""
_SHARING = 8
"""Trainings at once where they share launches: two are on the device, and the others meet while they wait."""


@dataclasses.dataclass(frozen=True, eq=False)
class TrainingResult:
    """What became of each trial, in the order they were asked for.

    ``scores`` are the observer's, ``[N]`` or ``[N, k]``, NaN for a trial that failed; ``failures`` says why, by trial.
    ``notes`` are what a user should know about how it ran; ``precision`` is what the numbers were computed in.
    """

    trials: NDArray[np.int64]
    worlds: NDArray[np.int64]
    scores: NDArray[np.float64] | None
    failures: dict[int, str]
    notes: tuple[str, ...]
    precision: str
    device: str
    stack: int

    @property
    def succeeded(self) -> NDArray[np.bool_]:
        """Which trials ended with finite parameters and scores."""
        return np.asarray([int(trial) not in self.failures for trial in self.trials])


def train(
    network: networks.Network,
    *,
    neighbours: Neighbours,
    config: TrainingConfig,
    fingerprint: str,
    trials: ArrayLike,
    worlds: ArrayLike,
    observer: Observer | None = None,
    device: str = "cpu",
    stack: int | None = None,
) -> TrainingResult:
    """Train each trial in its world by DP-SGD and show the models to the observer, within its view.

    A trial's start, batches and noise are functions of (``fingerprint``, trial) alone, so on one kind of device its
    result has the same bits whatever ``stack``, the order of the trials, or the process it ran in. Trials are
    independent as long as their numbers differ. On a CPU the training runs on one thread.

    >>> rng = np.random.default_rng(0)
    >>> base = Dataset(rng.normal(size=(100, 4)), rng.integers(0, 2, size=100))
    >>> config = TrainingConfig(steps=5, batch_size=10, clip=1.0, noise_multiplier=1.0, learning_rate=0.1)
    >>> result = train(
    ...     networks.Mlp(4, hidden=(3,)), neighbours=Neighbours(base, canary=ExampleCanary([1, 1, 1, 1.0], 1)),
    ...     config=config, fingerprint="an example", trials=range(4), worlds=[0, 1, 0, 1])
    >>> result.succeeded.tolist()
    [True, True, True, True]
    """
    numbers, sides = _check_trials(trials, worlds)
    _validate.instance("fingerprint", fingerprint, str)
    check_fit(network, neighbours, config)
    if observer is not None:
        _validate.instance("observer", observer, Observer)
        View.parse(observer.view)
    job = Job(network, neighbours, config, fingerprint, device_named(device), observer)
    if job.paired:
        check_pair(neighbours)
    place, refused = job.device, fused.refusal(job)
    if config.products == "bf16" and place.type == "cuda" and refused is not None and not stages.fits(job):
        raise UnsupportedError(f"products = 'bf16' is for the fused kernels, which cannot train this: it {refused}")
    size = choose_stack(job)
    kernels = "fused" if refused is None else "stages" if stages.fits(job) or compiled_stages.fits(job) else ""
    if stack is not None and place.type == "cpu":
        size = _validate.integer("stack", stack, at_least=1)
    notes: list[str] = []
    done: list[StackResult] = []
    others = contextlib.nullcontext() if refused is None else alone()
    with others, one_thread(place), _precision(config, place), _own_stream(place), torch.no_grad():
        rows = fused.FusedRows(job, place) if refused is None else None
        table = None if refused is None else make_table(job)
        start = 0
        while start < numbers.size:
            part = slice(start, start + size)
            try:
                done.append(
                    fused.train_fused(job, trials=numbers[part], worlds=sides[part], rows=rows)
                    if rows is not None
                    else _train_stack(job, trials=numbers[part], worlds=sides[part], table=table, size=size)
                )
            except (RuntimeError, MemoryError) as error:
                if not _out_of_memory(error):
                    raise
                if size == 1:
                    raise MemoryError(
                        "not even one model fits into memory: use smaller batches or a smaller network"
                    ) from error
                size = max(1, size // 2)
                notes.append(_memory_note(size, int(numbers[start]), place))
                continue
            start += size
    scores = [one.scores for one in done if one.scores is not None]
    return TrainingResult(
        trials=numbers,
        worlds=sides,
        scores=np.concatenate(scores) if scores else None,
        failures={trial: reason for one in done for trial, reason in one.failures.items()},
        notes=tuple(notes),
        precision=precision_name(job, by=kernels),
        device=str(place),
        stack=size,
    )


def _train_stack(
    job: Job, *, trials: NDArray[np.int64], worlds: NDArray[np.int64], table: RowTable | None, size: int
) -> StackResult:
    """One stack; its memory is free again when this returns."""
    # Kernels that compute each model by itself need no idle models beside it to keep its bits.
    room = size if job.device.type == "cuda" and not isinstance(table, StageTable) else 0
    return Stack(job, trials=trials, worlds=worlds, table=table, room=room).train()


def _out_of_memory(error: Exception) -> bool:
    """Whether memory ran out: Python's error, the GPU's, or the words of torch's allocator on a CPU."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _memory_note(size: int, trial: int, device: torch.device) -> str:
    """What to tell the user when a stack did not fit."""
    note = f"out of memory: stacked {size} models at a time from trial {trial} on"
    if device.type == "cuda":
        note += "; other shapes may round sums differently in the last bits on a GPU"
    return note


def _check_trials(trials: ArrayLike, worlds: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Trial numbers (all different) and a world for each."""
    numbers, sides = np.asarray(trials), np.asarray(worlds)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu" or numbers.size == 0 or (numbers < 0).any():
        raise InvalidInputError("trials is not allowed: expected a list of whole numbers of at least 0")
    if np.unique(numbers).size != numbers.size:
        raise InvalidInputError(
            "trials has the same number twice: expected different trials (their streams would agree)"
        )
    if sides.shape != numbers.shape or not np.isin(sides, (0, 1)).all():
        raise InvalidInputError(f"worlds is not allowed: expected 0 or 1 for each of the {numbers.size} trials")
    return numbers.astype(np.int64), sides.astype(np.int64)


def check_fit(network: networks.Network, neighbours: Neighbours, config: TrainingConfig) -> None:
    """Data, canary, network and start must fit together; the message names what does not."""
    base, canary = neighbours.base, neighbours.canary
    size = networks.parameter_count(network)
    if not isinstance(base, Dataset):
        if isinstance(base, AlikeRows) and config.sampling is Sampling.SHUFFLE:
            raise _validate.reject("sampling", config.sampling.value, "poisson or full for rows that are all alike")
    else:
        networks.check_layers(network)
        if networks.takes_tokens(network):
            _check_tokens(network, base, canary)
        if base.shape != network.input_shape:
            raise InvalidInputError(f"x has rows of shape {base.shape}: the network expects {network.input_shape}")
        parts = [("y", base.y)] + ([("canary y", canary.y)] if isinstance(canary, ExampleCanary) else [])
        for name, labels in parts:
            bad = np.flatnonzero(labels >= network.classes)
            if bad.size:
                raise _validate.reject(
                    f"{name}[{bad[0]}]", int(labels[bad[0]]), f"a label from 0 to {network.classes - 1}"
                )
        if isinstance(network, FromModule):
            rows = base.x[:4] if network.tokens else base.x[:4].astype(np.float64)
            check_independence(network.body, rows, classes=network.classes)
    if isinstance(canary, GradientCanary) and canary.gradient.size != size:
        raise InvalidInputError(f"the canary's gradient has {canary.gradient.size} entries: the network has {size}")
    if isinstance(canary, GradientRows):
        if isinstance(base, AlikeRows):
            raise InvalidInputError("canary has rows of gradients: expected base rows that are not all alike")
        if int(canary.indices.max()) >= size:
            raise _validate.reject("canary indices", int(canary.indices.max()), f"parameters 0 to {size - 1}")
    start = config.initialization
    if isinstance(start, GivenWeights) and start.values.size != size:
        raise InvalidInputError(f"initial weights has {start.values.size} entries: the network has {size}")
    config.rate(base.rows)


def _check_tokens(network: networks.Network, base: Dataset, canary: object) -> None:
    """Inputs of an embedding: whole numbers that its table has."""
    first = network.layers()[0]
    parts = [("x", base.x)] + ([("canary x", canary.x)] if isinstance(canary, ExampleCanary) else [])
    for name, x in parts:
        if x.dtype.kind != "i":
            raise InvalidInputError(f"{name} has element type {x.dtype}: expected token numbers (whole numbers)")
        if isinstance(first, Embedding) and not ((x >= 0) & (x < first.tokens)).all():
            raise InvalidInputError(
                f"{name} has tokens from {x.min()} to {x.max()}: expected token numbers 0 to {first.tokens - 1}, "
                f"as the table of {first} has"
            )


def choose_stack(job: Job) -> int:
    """How many models to stack, from what they need: at most 16 and 2 GiB on a CPU (1024 without
    gradients to compute), 1024 and 8 GiB on a GPU, where kernels of our own have numbers of their own.

    On a GPU it is a function of the config alone and a power of two: a stack always has the same shapes there, so
    that the library's choice of kernel, and with it the order of sums, cannot change from stack to stack.

    >>> base = Dataset(np.zeros((6000, 784), dtype=np.float32), np.zeros(6000, dtype=int))
    >>> config = TrainingConfig(steps=576, batch_size=250, clip=1.0, noise_multiplier=1.55, learning_rate=0.15)
    >>> choose_stack(Job(networks.Mlp(784), Neighbours(base), config, "an example", torch.device("cpu")))
    16
    """
    if fused.refusal(job) is None:
        return fused.STACK
    if stages.fits(job):
        return stages.stack_size(job)
    most, budget = (CPU_STACK, 2**31) if job.device.type == "cpu" else (GPU_STACK, 2**33)
    floats = 8 * networks.parameter_count(job.network)
    if isinstance(job.neighbours.base, Dataset):
        example = networks.example_floats(job.network)
        floats += width(job.config, rows=job.rows, example_floats=example) * example
    else:
        most = GPU_STACK
    fit = max(1, budget // (job.dtype.itemsize * floats))
    return int(min(most, 2 ** int(math.log2(fit))))


def stack_for(
    network: networks.Network,
    *,
    neighbours: Neighbours,
    config: TrainingConfig,
    observer: Observer | None = None,
    device: str = "cpu",
) -> int:
    """How many models :func:`train` stacks here where it is left to choose.

    >>> config = TrainingConfig(steps=5, batch_size=1, clip=1.0, noise_multiplier=1.0, learning_rate=0.1)
    >>> stack_for(networks.Mlp(4), neighbours=Neighbours(Dataset([[0.0] * 4], [0])), config=config)
    16
    """
    return choose_stack(Job(network, neighbours, config, "", device_named(device), observer))


def device_named(name: str) -> torch.device:
    """The device of that name, if it is there."""
    _validate.instance("device", name, str)
    kind = name.partition(":")[0]
    _validate.choice("device", kind, ("cpu", "cuda"))
    if kind == "cuda" and not torch.cuda.is_available():
        raise _validate.reject("device", name, "'cpu': this machine has no CUDA device that torch can use")
    return torch.device(name)


def at_once(device: str, network: networks.Network) -> int:
    """How many trainings of this network a device should have at once, each in a thread of its own.

    Two on a GPU that has room for two of the largest stacks: while one is prepared or scored, the other keeps it busy.
    More of those that the fused kernels take: what waits there goes in one launch.

    >>> at_once("cpu", networks.Mlp(4))
    1
    """
    place = device_named(device)
    if place.type == "cpu" or torch.cuda.get_device_properties(place).total_memory < _ROOM_FOR_TWO:
        return 1
    return 2 if fused.too_large(network) else _SHARING


_settings = threading.RLock()


def alone() -> contextlib.AbstractContextManager[Any]:
    """For a thread whose numbers depend on what torch has once for the whole process: how many threads compute a sum,
    which kernels may be chosen, buffers that are kept. One thread at a time; the fused kernels need none of it.
    """
    return _settings


@contextlib.contextmanager
def one_thread(device: torch.device | None = None) -> Iterator[None]:
    """On a CPU, one torch thread: two processes beat two threads, and sums are then always split the same way."""
    if device is not None and device.type != "cpu":
        yield
        return
    with alone():
        before = torch.get_num_threads()
        if before != 1:
            torch.set_num_threads(1)
        try:
            yield
        finally:
            if torch.get_num_threads() != before:
                torch.set_num_threads(before)


def precision_name(job: Job, *, by: str) -> str:
    """What the numbers were computed in and by which kernels: together with the device this tells apart what need
    not agree to the bit.

    >>> job = Job(networks.Mlp(4), Neighbours(Dataset([[0.0] * 4], [0])), TrainingConfig(steps=1, clip=1.0,
    ...     noise_multiplier=1.0, learning_rate=0.1, sampling="full", products="tf32"), "a run", torch.device("cuda"))
    >>> precision_name(job, by="fused")
    'tf32 fused v4'
    """
    config, on_gpu = job.config, job.device.type == "cuda"
    words = [config.products if config.products != "float32" and on_gpu else config.dtype]
    if backends.compiled(device=job.device, dtype=torch.float32) and config.dtype == "float32":
        words.append("compiled")
    return " ".join([*words, *([by] if by else []), *([f"v{backends.GPU_VERSION}"] if on_gpu else [])])


class _Products:
    """What torch's own products on a GPU are rounded to: one setting for the whole process, so threads that train
    at once must want the same, and the last of them puts it back.
    """

    def __init__(self) -> None:
        self._free = threading.Condition()
        self._users, self._before = 0, ""

    @contextlib.contextmanager
    def __call__(self, config: TrainingConfig, device: torch.device) -> Iterator[None]:
        """TF32 products only where the config asks for them."""
        wanted = "high" if config.products == "tf32" and device.type == "cuda" else "highest"
        with self._free:
            self._free.wait_for(lambda: self._users == 0 or torch.get_float32_matmul_precision() == wanted)
            if self._users == 0:
                self._before = torch.get_float32_matmul_precision()
                torch.set_float32_matmul_precision(wanted)
            self._users += 1
        try:
            yield
        finally:
            with self._free:
                self._users -= 1
                if self._users == 0:
                    torch.set_float32_matmul_precision(self._before)
                    self._free.notify_all()


_precision = _Products()


class _Streams(threading.local):
    """A stream for each thread that trains beside the main one, so that none waits for the others' kernels.

    Each thread keeps its own: memory that one stream has used is not given to another.
    """

    def __init__(self) -> None:
        self._made: dict[torch.device, Any] = {}

    def __call__(self, device: torch.device) -> contextlib.AbstractContextManager[Any]:
        if device.type != "cuda":
            return contextlib.nullcontext()
        if threading.current_thread() is threading.main_thread():
            return torch.cuda.device(device)  # Triton launches on the current device, whatever tensors it is given
        if device not in self._made:
            self._made[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return torch.cuda.stream(self._made[device])


_own_stream = _Streams()
