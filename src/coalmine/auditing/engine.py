"""The engine that an execution asks for."""

from __future__ import annotations

import contextlib

from coalmine.auditing.config import Execution
from coalmine.game import Engine
from coalmine.game.engines import DevicesEngine, InlineEngine, LocalEngine


def open_engine(how: Execution) -> contextlib.AbstractContextManager[Engine]:
    """The engine, to be used in a ``with`` block; Ray is loaded only where it is asked for."""
    if how.engine == "ray":
        from coalmine.game.engines.ray import RayEngine

        gpus = (0.0 if how.device == "cpu" else 1.0) if how.gpus is None else how.gpus
        return RayEngine(
            how.address,
            workers=how.workers,
            cpus=how.cpus,
            gpus=gpus,
            memory=how.memory,
            accelerator=how.accelerator,
        )
    if how.engine == "inline":
        return InlineEngine()
    if len(how.devices) > 1:
        return DevicesEngine(how.devices)
    return LocalEngine(how.worker_count)
