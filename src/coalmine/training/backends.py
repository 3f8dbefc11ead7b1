"""Which kernels there are on this machine beside torch's own: numba's for a CPU, Triton's for a GPU.

Numbers computed by compiled kernels on a CPU differ in the last bits from those of torch's operations, and the noise
comes from another generator, so the two are told apart like two kinds of device: ``TrainingResult.precision`` says
``float32 compiled``. Which of the two is used depends on config and machine alone, never on the stack.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

import torch


def _if_there(name: str) -> Any:
    """A module of kernels, or None where what compiles it is not installed: numba is an extra, Triton comes with
    torch's GPU builds alone.
    """
    try:
        return importlib.import_module(f"coalmine.training.{name}")
    except ImportError:
        return None


numba_kernels = _if_there("cpu_kernels")
numba_stage_kernels = _if_there("cpu_stage_kernels")
triton_kernels = _if_there("kernels")
stage_kernels = _if_there("stage_kernels")
GPU_VERSION = 4
"""Of a GPU's kernels and streams, part of the name of what it computed. Raise it when a change gives a trial other
bits: the store then keeps old and new trials side by side and does not call it a contradiction.
"""
SWITCH = "COALMINE_COMPILED"
"""Environment variable: 0 leaves the work to torch even where numba is installed."""


def compiled(*, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether trainings on this device, in numbers of this type, are computed by compiled kernels here."""
    if numba_kernels is None or not numba_kernels.READY or os.environ.get(SWITCH) == "0":
        return False
    return device.type == "cpu" and dtype == torch.float32


def hardware(device: str) -> str:
    """What shapes the bits of a result beside the precision: a processor's instruction set, a GPU's name.

    >>> hardware("cpu") in ("DEFAULT", "NO AVX", "AVX2", "AVX512", "SVE256", "ZVECTOR", "VSX")
    True
    """
    if torch.device(device).type == "cpu":
        return str(torch.backends.cpu.get_cpu_capability())
    return str(torch.cuda.get_device_name(torch.device(device)))


def precision(name: str, *, device: str) -> str:
    """The name of a precision, with ``compiled`` where compiled kernels may have shaped the numbers.

    >>> precision("float64", device="cuda")
    'float64'
    """
    return f"{name} compiled" if compiled(device=torch.device(device), dtype=torch.float32) else name
