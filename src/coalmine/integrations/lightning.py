"""Trainings with Lightning: the step that it really takes, with the optimizer that it really steps, is probed."""

from __future__ import annotations

import importlib
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from coalmine.errors import InvalidInputError, UnsupportedError
from coalmine.integrations import opacus

if TYPE_CHECKING:
    from coalmine.probing.findings import ProbeReport
    from coalmine.probing.private_step import PrivateStep


class _Probed(Exception):  # noqa: N818 - it is no error
    """Ends a fit whose first step was probed."""


def probe(
    trainer: Any,
    module: Any,
    *,
    train_dataloaders: Any = None,
    datamodule: Any = None,
    batch: Any = None,
    level: float = 1e-4,
    replays: int = 200,
    tries: int = 120,
    seed: int = 0,
    **promise: Any,
) -> ProbeReport:
    """Let Lightning begin a training, and probe its step in the place of the first batch; nothing is trained.

    The step is Lightning's own, with its hooks, its precision and whatever wraps the optimizer. So the optimizer that
    is probed is the one that is stepped, and not one that was made private and then forgotten.

    Args:
        trainer: a Lightning ``Trainer`` made for this; it is not of use for a training afterwards.
        module: the ``LightningModule``, with automatic or manual optimization.
        train_dataloaders: as for ``trainer.fit``.
        datamodule: as for ``trainer.fit``.
        batch: rows to try the step with; the first rows of the training loader's data set unless given.
        level: as in :func:`coalmine.probe`.
        replays: as there.
        tries: as there.
        seed: as there.
        promise: what is promised (``clip_norm``, ``noise_multiplier``, …; see
            :class:`coalmine.probing.private_step.PrivateStep`). What is left out is read off the optimizer, if it is
            a private one of Opacus.

    Returns:
        the report.
    """
    from coalmine.probing.probe import probe as probe_step

    found: list[ProbeReport] = []

    def on_train_batch_start(trainer: Any, module: Any, *_: Any) -> None:
        subject = _step(trainer, module, batch, promise)
        found.append(probe_step(subject, level=level, replays=replays, tries=tries, seed=seed))
        raise _Probed

    here = _base(trainer)()
    here.on_train_batch_start = on_train_batch_start
    trainer.callbacks.append(here)
    try:
        trainer.fit(module, train_dataloaders=train_dataloaders, datamodule=datamodule)
    except _Probed:
        return found[0]
    finally:
        trainer.callbacks.remove(here)
    raise InvalidInputError("trainer ended before its first batch: expected a trainer and data that train at all")


def _base(trainer: Any) -> Any:
    """The class of callbacks that belongs to the trainer: Lightning comes as two packages."""
    for one in type(trainer).__mro__:
        for package in ("lightning.pytorch", "pytorch_lightning"):
            if one.__name__ == "Trainer" and one.__module__.startswith(package):
                return importlib.import_module(package).Callback
    raise InvalidInputError(f"trainer is of type {type(trainer).__name__}: expected a Trainer of Lightning")


def _step(trainer: Any, module: Any, batch: Any, promise: dict[str, Any]) -> PrivateStep:
    """What Lightning does with a batch, from the training step to the step of its optimizers."""
    from coalmine.probing.private_step import PrivateStep

    if trainer.accumulate_grad_batches != 1:
        raise UnsupportedError(
            f"accumulate_grad_batches = {trainer.accumulate_grad_batches}: expected 1; several batches are one step of "
            "the accounting then, so hand over one batch of that size"
        )
    loop = trainer.fit_loop.epoch_loop

    def step(rows: Any) -> None:
        # As Lightning's own epoch loop does it, without what that logs and counts.
        rows = module._on_before_batch_transfer(trainer.precision_plugin.convert_input(rows))
        rows = trainer.strategy.batch_to_device(rows)
        named = loop._build_kwargs(OrderedDict(), rows, 0)
        if module.automatic_optimization:
            loop.automatic_optimization.run(trainer.optimizers[0], 0, named)
        else:
            loop.manual_optimization.run(named)

    optimizers = list(trainer.optimizers)
    stepped = " and ".join(type(one).__name__ for one in optimizers)
    if batch is None:
        batch = opacus.first_rows(trainer.train_dataloader)
    given = {"state": [module, *optimizers], "name": f"{stepped}, as Lightning steps it", **promise}
    private = [one for one in optimizers if opacus.is_private(one)]
    if private:
        loader = trainer.train_dataloader
        return opacus.step(module, private[0], own_step=step, batch=batch, loader=loader, **given)
    missing = [name for name in ("clip_norm", "noise_multiplier") if name not in promise]
    if missing:
        raise InvalidInputError(
            f"{missing[0]} is missing: Lightning steps {stepped}, which is not private, so what is promised cannot be "
            "read off it; hand it over to see what the step really does"
        )
    return PrivateStep(step=step, batch=batch, **given)
