"""Trainings with Lightning: the step that it really takes, with the optimizer that it really steps, is probed."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from coalmine.errors import InvalidInputError, UnsupportedError
from coalmine.integrations import lightning_step, opacus

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

    The step is Lightning's own, with the batch hooks of the module and of its callbacks, its precision, whatever wraps
    the optimizer, and the schedulers of the learning rate. So the optimizer that is probed is the one that is stepped,
    and not one that was made private and then forgotten. What the step logs counts as released, as ``logged.<name>``.

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

    here = lightning_step.package_of(trainer).Callback()
    opacus.check_promise(promise)
    found: list[ProbeReport] = []
    logged = lightning_step.Logged()

    def on_train_batch_start(trainer: Any, module: Any, *_: Any) -> None:
        lightning_step.begin_again(trainer)
        callbacks = lightning_step.Callbacks(trainer, but=here)
        with logged.listening(trainer, module):
            subject = _step(trainer, module, callbacks, logged, batch, promise)
            report = probe_step(subject, level=level, replays=replays, tries=tries, seed=seed)
        found.append(_with_hints(report, callbacks.left_out))
        raise _Probed

    here.on_train_batch_start = on_train_batch_start
    trainer.callbacks.insert(0, here)  # before any other has seen the first batch
    try:
        trainer.fit(module, train_dataloaders=train_dataloaders, datamodule=datamodule)
    except _Probed:
        return found[0]
    finally:
        trainer.callbacks.remove(here)
    raise InvalidInputError("trainer ended before its first batch: expected a trainer and data that train at all")


def _step(
    trainer: Any,
    module: Any,
    callbacks: lightning_step.Callbacks,
    logged: lightning_step.Logged,
    batch: Any,
    promise: dict[str, Any],
) -> PrivateStep:
    """What Lightning does with a batch, and what is promised of it."""
    from coalmine.probing.private_step import PrivateStep

    if trainer.accumulate_grad_batches != 1:
        raise UnsupportedError(
            f"accumulate_grad_batches = {trainer.accumulate_grad_batches}: expected 1; several batches are one step of "
            "the accounting then, so hand over one batch of that size"
        )
    step = lightning_step.one_batch(trainer, module, callbacks, logged)
    optimizers = list(trainer.optimizers)
    schedulers = lightning_step.schedulers(trainer)
    stepped = " and ".join(type(one).__name__ for one in optimizers)
    if batch is None:
        batch = opacus.first_rows(trainer.train_dataloader)
    state = [module, *optimizers, *([schedulers] if schedulers else [])]
    given = {"state": state, "name": f"{stepped}, as Lightning steps it", **promise}
    private = [one for one in optimizers if opacus.is_private(one)]
    missing = [name for name in ("clip_norm", "noise_multiplier") if name not in promise]
    if private:
        loader = trainer.train_dataloader
        subject = opacus.step(module, private[0], own_step=step, batch=batch, loader=loader, **given)
    elif missing:
        raise InvalidInputError(
            f"{missing[0]} is missing: Lightning steps {stepped}, which is not private, so what is promised cannot be "
            "read off it; hand it over to see what the step really does"
        )
    else:
        subject = PrivateStep(step=step, batch=batch, **given)
    more = subject.released

    def released() -> dict[str, Any]:
        return {**(more() if more is not None else {}), **callbacks.released(), **logged.released()}

    return dataclasses.replace(subject, released=released)


def _with_hints(report: ProbeReport, left_out: list[str]) -> ProbeReport:
    """The report, with what to do about values that are logged, and the hooks that were not run."""
    from coalmine.probing.findings import Measurement

    measured = []
    for one in report.measurements:
        names = [name for name in one.details.get("uncovered", ()) if name.startswith("logged.")]
        findings = []
        for finding in one.findings:
            name = next(
                (name for name in names if f"{name}," in finding.sentence or f"{name} " in finding.sentence), ""
            )
            hint = f' The step logs it; if nobody outside sees the log, say kept=("{name}",).' if name else ""
            findings.append(dataclasses.replace(finding, sentence=finding.sentence + hint))
        measured.append(dataclasses.replace(one, findings=tuple(findings)))
    if left_out:
        hooks = ", ".join(left_out)
        measured.append(
            Measurement(
                name="hooks",
                sentence=f"Not everything that Lightning calls was run: {hooks}.",
                blind=f"{hooks} may change the training and was not run, since it saves files or ends the training; "
                "move what it changes into a callback of its own, or probe without it",
            )
        )
    return dataclasses.replace(report, measurements=tuple(measured))
