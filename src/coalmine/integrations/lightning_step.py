"""What Lightning does with one batch: the training step with its hooks, its optimizers, and what it logs.

Lightning's epoch loop cannot be replayed as it is: it draws bars, saves checkpoints and writes to loggers. So its parts
are called here one after the other, in its own order, but for those that only watch. What could change the training,
and is not called, is named.
"""

from __future__ import annotations

import contextlib
import importlib
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from coalmine.errors import InvalidInputError

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")
_HOOKS = ("on_train_batch_start", "on_train_batch_end")
_ONLY_WATCH = {
    "callback",  # the base class, whose hooks do nothing
    "device_stats_monitor",
    "lr_monitor",
    "model_checkpoint",
    "progress",
    "throughput_monitor",
    "timer",
}
"""Modules of Lightning whose callbacks show, time or save a training, and change nothing in it."""
_SKIPPED = -1
"""What ``on_train_batch_start`` of a module returns to leave out the rest of the epoch."""


def package_of(trainer: Any) -> Any:
    """The package that the trainer is of: Lightning comes as two."""
    for one in type(trainer).__mro__:
        for name in _PACKAGES:
            if one.__name__ == "Trainer" and one.__module__.startswith(name):
                return importlib.import_module(name)
    raise InvalidInputError(f"trainer is of type {type(trainer).__name__}: expected a Trainer of Lightning")


class Logged:
    """What a step hands to ``self.log`` and to the trainer's loggers, by name: people outside see it."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

    def clear(self) -> None:
        """Forget what the step before has logged."""
        self._values.clear()

    def note(self, name: str, value: Any) -> None:
        """Keep a number, a tensor, or what a metric has gathered; a second one of a name does not hide the first."""
        value = getattr(value, "metric_state", value)
        key, number = str(name), 2
        while key in self._values:
            key, number = f"{name}, time {number}", number + 1
        self._values[key] = _copied(value)

    def released(self) -> dict[str, Any]:
        """Everything logged, as a release of the step."""
        return {f"logged.{name}": value for name, value in self._values.items()}

    @contextlib.contextmanager
    def listening(self, trainer: Any, module: Any) -> Iterator[None]:
        """Hear what is logged meanwhile; nothing of it reaches the files of a logger."""
        ask = module.log

        def log(name: str, value: Any, *args: Any, **kwargs: Any) -> Any:
            self.note(name, value)
            return ask(name, value, *args, **kwargs)

        def log_metrics(metrics: Mapping[str, Any], *_: Any, **__: Any) -> None:
            for name, value in metrics.items():
                self.note(name, value)

        places = [(module, "log", log), *((one, "log_metrics", log_metrics) for one in trainer.loggers)]
        before = [(vars(owner), name, vars(owner).get(name)) for owner, name, _ in places]
        for owner, name, function in places:
            setattr(owner, name, function)
        try:
            yield
        finally:
            for attributes, name, value in before:
                attributes.pop(name, None)
                if value is not None:
                    attributes[name] = value


def _copied(value: Any) -> Any:
    """A value as it is now: a step may go on to change it."""
    if isinstance(value, Mapping):
        return {name: _copied(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_copied(one) for one in value]
    return value.detach().clone() if hasattr(value, "detach") else value


class Callbacks:
    """The trainer's callbacks whose batch hooks are in the step, and the hooks that cannot be."""

    def __init__(self, trainer: Any, *, but: Any) -> None:
        checkpoint = importlib.import_module(f"{package_of(trainer).__name__}.callbacks").Checkpoint
        self.run: dict[str, Any] = {}
        self.left_out: list[str] = []
        """Hooks that may change the training and are not run: they save files, or end it."""
        for one in trainer.callbacks:
            kind = type(one).__name__
            hooks = [name for name in _HOOKS if one is not but and not _only_watches(getattr(one, name))]
            if hooks and (isinstance(one, checkpoint) or _is_lightning(getattr(one, hooks[0]), "spike")):
                self.left_out += [f"{kind}.{name}" for name in hooks]
            elif hooks:
                alike = sum(name.partition(" ")[0] == kind for name in self.run)
                self.run[f"{kind} {alike + 1}" if alike else kind] = one

    def functions(self) -> dict[str, Callable[..., Any]]:
        """The hooks, by name, for whoever looks what they hold."""
        return {f"{kind}.{name}": getattr(one, name) for kind, one in self.run.items() for name in _HOOKS}

    def released(self) -> dict[str, Any]:
        """What a checkpoint holds of them, and the weights of models that they keep, such as averages."""
        found: dict[str, Any] = {}
        for kind, one in self.run.items():
            found |= {f"{kind}.{name}": value for name, value in one.state_dict().items()}
            for name, value in vars(one).items():
                if hasattr(value, "named_parameters"):
                    found[f"{kind}.{name}"] = value.state_dict()
        return found


def _only_watches(hook: Any) -> bool:
    return any(_is_lightning(hook, name) for name in _ONLY_WATCH)


def _is_lightning(hook: Any, name: str) -> bool:
    """Whether a hook is Lightning's own, of the module of this name."""
    where = str(getattr(hook, "__module__", ""))
    return where.startswith(_PACKAGES) and name in where.split(".")


def one_batch(trainer: Any, module: Any, callbacks: Callbacks, logged: Logged) -> Callable[[Any], None]:
    """A function that does with a batch what Lightning's epoch loop does, in its order."""
    loop = trainer.fit_loop.epoch_loop
    connector = trainer._logger_connector
    steps = _planned(trainer)
    # What they hold is looked at under these names; see coalmine.probing.elsewhere.
    callback, hooks = callbacks.run, callbacks.functions()

    def call(name: str, function: Callable[..., Any], *args: Any) -> Any:
        before, module._current_fx_name = module._current_fx_name, name  # where self.log looks who logs
        try:
            return function(*args)
        finally:
            module._current_fx_name = before

    def batch_hooks(name: str, *args: Any) -> Any:
        for one in callback:
            call(name, hooks[f"{one}.{name}"], trainer, module, *args)
        return call(name, getattr(module, name), *args)

    def schedule(*, plateau: bool, number: int) -> None:
        for one in trainer.lr_scheduler_configs if module.automatic_optimization else ():
            value = trainer.callback_metrics.get(one.monitor) if one.reduce_on_plateau else None
            if one.reduce_on_plateau:
                # One that waits for the end of an epoch follows the same number: an epoch may be one batch.
                due = value is not None
            else:
                due = one.interval == "step" and (number + 1) % one.frequency == 0 and trainer.global_step <= steps
            if due and one.reduce_on_plateau == plateau:
                call("lr_scheduler_step", module.lr_scheduler_step, one.scheduler, value)

    def step(rows: Any) -> None:
        logged.clear()
        number = loop.batch_idx + 1
        rows = module._on_before_batch_transfer(trainer.precision_plugin.convert_input(rows))
        rows = trainer.strategy.batch_to_device(rows)
        loop.batch_progress.increment_ready()
        connector.on_batch_start(rows)
        skipped = batch_hooks("on_train_batch_start", rows, number) == _SKIPPED
        outputs: Any = None
        if not skipped:
            loop.batch_progress.increment_started()
            named = loop._build_kwargs(OrderedDict(), rows, number)
            if module.automatic_optimization:
                outputs = loop.automatic_optimization.run(trainer.optimizers[0], number, named)
            else:
                outputs = loop.manual_optimization.run(named)
        loop.batch_progress.increment_processed()
        schedule(plateau=False, number=number)
        if skipped:
            return
        batch_hooks("on_train_batch_end", outputs, rows, number)
        connector.on_batch_end()
        loop.batch_progress.increment_completed()
        schedule(plateau=True, number=number)
        loop._batches_that_stepped += 1

    return step


def begin_again(trainer: Any) -> None:
    """Take back what Lightning has counted of its first batch, in whose place the step is probed."""
    progress = trainer.fit_loop.epoch_loop.batch_progress
    progress.current.ready -= 1
    progress.total.ready -= 1
    progress.is_last_batch = False
    trainer._logger_connector._first_loop_iter = None


def schedulers(trainer: Any) -> dict[str, Any]:
    """The learning rates' schedulers, by name: checkpoints hold their state."""
    found: dict[str, Any] = {}
    for one in trainer.lr_scheduler_configs:
        kind = type(one.scheduler).__name__
        alike = sum(name.partition(" ")[0] == kind for name in found)
        found[f"{kind} {alike + 1}" if alike else kind] = one.scheduler
    return found


def _planned(trainer: Any) -> float:
    """How many steps the training would take: schedulers that know their end fail after it."""
    epochs, steps = trainer.max_epochs, trainer.max_steps
    most = math.inf if epochs in (None, -1) else float(trainer.num_training_batches) * epochs
    return most if steps is None or steps < 0 else min(most, float(steps))
