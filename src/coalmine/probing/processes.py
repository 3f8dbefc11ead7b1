"""``probe_processes``: a private step on several ranks at once, on this machine, and what they add up to.

The ranks are processes of their own under torch.distributed (gloo, on the CPU). Each builds its step by the user's
function, and takes it many times on the same rows. What the optimizer is handed in the end is the release: its noise is
that of all ranks together, and a row on any of them must not move it by more than one clipping norm.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from coalmine import _validate
from coalmine.errors import InvalidInputError
from coalmine.probing.batches import Draws
from coalmine.probing.findings import Finding, Measurement, ProbeReport
from coalmine.probing.sampler import probe_draws

_CLEARLY = 1.02
"""Numbers that differ by less are taken for equal where a fault gets its name."""
_MOST_RANKS = 16


def probe_processes(
    make_step: Callable[[], Any] | str,
    *,
    processes: int = 2,
    make_loader: Callable[[], Any] | str | None = None,
    sample_rate: float | None = None,
    replays: int = 40,
    level: float = 0.01,
    time_limit: float = 300.0,
) -> ProbeReport:
    """Take a private step on several ranks, and measure total noise, clipping, divisor, seeds and samplers.

    Args:
        make_step: A function without arguments, or ``"module:function"``. It is called on each rank, when
            torch.distributed is set up there (gloo), and gives a :class:`PrivateStep`: ``step`` (a function of this
            rank's ``batch``), ``batch``, ``state`` (with the torch optimizer), ``clip_norm``, ``noise_multiplier`` and
            ``divisor`` (by which the sum over *all* ranks is divided; None if it is not known).
        processes: How many ranks.
        make_loader: Builds this rank's loader; then the ranks' samplers are tested together
            (:func:`coalmine.probing.sampler.probe_sampler`).
        sample_rate: The rate that the accountant was told. Default: what the samplers say of themselves.
        replays: How often the step is taken with fresh noise.
        level: The chance that a right training is refuted, over all statistical measurements.
        time_limit: Seconds after which the ranks are stopped.

    Returns:
        The report. Nothing of the calling process is changed, and no process is left behind.
    """
    started = time.perf_counter()
    processes = _validate.integer("processes", processes, at_least=2, at_most=_MOST_RANKS)
    replays = _validate.integer("replays", replays, at_least=10)
    level = _validate.open_unit("level", level)
    time_limit = _validate.positive("time_limit", time_limit)
    functions = {"step": _importable("make_step", make_step)}
    if make_loader is not None:
        functions["loader"] = _importable("make_loader", make_loader)
    seen = _run(functions, processes=processes, replays=replays, rate=sample_rate, time_limit=time_limit)
    share = level / 2.0 if make_loader is not None else level
    measured = [_same_release(seen), _clipping(seen), _noise(seen, share), _seeds(seen, share)]
    if make_loader is not None:
        draws = Draws(rows=seen["rows"], ranks=_ranks(seen["batches"]))
        measured += probe_draws(draws, sample_rate=seen["rate"], level=share).measurements
    return ProbeReport(
        subject=f"{functions['step']} on {processes} processes",
        measurements=tuple(measured),
        level=level,
        seconds=time.perf_counter() - started,
    )


def _run(
    functions: dict[str, str], *, processes: int, replays: int, rate: float | None, time_limit: float
) -> dict[str, Any]:
    """Start the ranks, wait for them, and read what rank 0 wrote; they are gone afterwards, whatever happened."""
    from torch.multiprocessing.spawn import spawn

    from coalmine.probing import _ranks as ranks

    with tempfile.TemporaryDirectory(prefix="coalmine-ranks-") as folder:
        job = {
            "functions": functions,
            "folder": folder,
            "path": [str(Path.cwd()), *sys.path],
            "replays": replays,
            "rate": rate,
            "world": processes,
        }
        context: Any = spawn(  # type: ignore[no-untyped-call]
            ranks.work, args=(json.dumps(job),), nprocs=processes, join=False, daemon=True
        )
        try:
            _wait(context, time.monotonic() + time_limit, time_limit)
        except InvalidInputError as error:
            # What a rank had to say itself comes before what its end did to the others.
            raise InvalidInputError(_problem(folder) or str(error)) from None
        finally:
            for one in context.processes:
                if one.is_alive():
                    one.kill()
                one.join()
        problem = _problem(folder)
        if problem:
            raise InvalidInputError(problem)
        found: dict[str, Any] = json.loads((Path(folder) / "result.json").read_text(encoding="utf-8"))
        return found


def _problem(folder: str) -> str:
    """What a rank could not do, if it said so."""
    notes = sorted(Path(folder).glob("problem-*"))
    return notes[0].read_text(encoding="utf-8") if notes else ""


def _wait(context: Any, until: float, time_limit: float) -> None:
    """Until all ranks are done; an error of one of them is ours to tell."""
    from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException

    try:
        while not context.join(timeout=1.0):
            if time.monotonic() > until:
                raise InvalidInputError(
                    f"the ranks took longer than time_limit = {time_limit:g} seconds and were stopped: a rank that "
                    "waits for another one that never comes, or a step that is too slow"
                )
    except ProcessRaisedException as error:
        last = [line for line in str(error).strip().splitlines() if line.strip()][-1]
        raise InvalidInputError(f"a rank failed: {last}") from None
    except ProcessExitedException as error:
        raise InvalidInputError(f"a rank ended without a word: {error}") from None


def _importable(name: str, function: Callable[[], Any] | str) -> str:
    """``module:function``, by which other processes find it."""
    if isinstance(function, str):
        if ":" not in function:
            raise _validate.reject(name, function, "module:function, such as mytraining:make_step")
        return function
    module, path = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    if not module or "<" in path or "." in path:
        raise _validate.reject(
            name, function, "a function at the top of a module, so that other processes can import it"
        )
    if module == "__main__":
        file = getattr(sys.modules["__main__"], "__file__", None)
        if file is None:
            raise _validate.reject(
                name, function, "a function of a module; other processes do not know what was typed in"
            )
        module = os.path.splitext(os.path.basename(file))[0]
    if getattr(importlib.import_module(module), path, None) is None:
        raise _validate.reject(
            name, function, "a function at the top of a module, so that other processes can import it"
        )
    return f"{module}:{path}"


def _ranks(batches: list[list[list[list[int]]]]) -> tuple[tuple[tuple[np.ndarray, ...], ...], ...]:
    """The batches of all ranks as arrays."""
    return tuple(tuple(tuple(np.array(batch, dtype=np.int64) for batch in epoch) for epoch in rank) for rank in batches)


def _same_release(seen: dict[str, Any]) -> Measurement:
    """All ranks must hand the same gradient to their optimizers, or their models part."""
    apart = seen["apart"]
    findings: tuple[Finding, ...] = ()
    words = "All ranks take the same step."
    if apart > 1e-5:
        words = f"After the step the ranks differ by {apart:.3g} of the gradient's size."
        findings = (
            Finding(
                fault="ranks take different steps",
                sentence=words,
                look_at="what happens after gradients were added up over ranks: noise that each rank adds by itself.",
                number=apart,
                allowed=0.0,
                witness=f"ranks 0 and {seen['apart_rank']}",
            ),
        )
    return Measurement(name="the ranks' steps", sentence=words, findings=findings)


def _clipping(seen: dict[str, Any]) -> Measurement:
    """How far one row on one rank moves the sum of all."""
    name = "clipping over ranks"
    if seen["moved"] is None:
        return Measurement(
            name=name,
            sentence="Two steps without noise differ.",
            blind="two steps without noise differ: something is drawn from a generator that cannot be reached",
        )
    moved, ratio = seen["moved"], _ratio(seen)
    words = f"A row moves the sum by up to {moved:.4g} clipping norms"
    words += "." if seen["divisor"] is not None else " in the unit of the gradient."
    findings: tuple[Finding, ...] = ()
    if seen["divisor"] is not None and moved > 1.001 and ratio < moved / _CLEARLY:
        findings = (
            Finding(
                fault="sensitivity too large",
                sentence=f"{words} One clipping norm is accounted.",
                look_at="clipping on each rank before gradients are added up over ranks, and the divisor.",
                number=moved,
                allowed=1.0,
                witness=seen["witness"],
            ),
        )
    return Measurement(
        name=name, sentence=words, findings=findings, details={"moved": moved, "witness": seen["witness"]}
    )


def _ratio(seen: dict[str, Any]) -> float:
    """The noise of all ranks together over σ·C, in the unit of the sum where it is known."""
    return math.sqrt(sum(seen["squares"]) / sum(seen["freedom"]))


def _noise(seen: dict[str, Any], level: float) -> Measurement:
    """Σ(noise − mean)²/(σC)² over replays follows χ², for each tensor and for all together."""
    world, moved = seen["world"], seen["moved"]
    unit = 1.0
    if seen["divisor"] is None:
        if not moved:
            return Measurement(name="noise over all ranks", sentence="No divisor is given.", blind="give the divisor")
        unit = moved  # what one row may change, in the unit of the gradient
    ratio = _ratio(seen) / unit
    names = [*seen["names"], "all tensors"]
    squares = [*seen["squares"], sum(seen["squares"])]
    freedom = [*seen["freedom"], sum(seen["freedom"])]
    share = level / (2.0 * len(names))
    lower = [float(stats.chi2.cdf(s / unit**2, n)) for s, n in zip(squares, freedom, strict=True)]
    worst = int(np.argmin(lower))
    size = math.sqrt(squares[worst] / freedom[worst]) / unit
    words = f"The noise of all {world} ranks together is {ratio:.4g} of what is promised."
    look_at = "who adds noise: one rank all of it, or each of R ranks σ·C/√R, before the gradients are added up."
    findings = []
    common = {"allowed": 1.0, "witness": f"{names[worst]}, over {seen['replays']} steps"}
    if lower[worst] <= share:
        # Measured by what a row really moves: if the noise is enough for that, only the unit is another one.
        enough = moved and stats.chi2.cdf(squares[worst] / moved**2, freedom[worst]) > share
        if seen["divisor"] is not None and enough:
            findings.append(
                Finding(
                    fault="wrong divisor",
                    sentence=(
                        f"Rows and noise both reach the optimizer {moved:.3g} times as large as the divisor "
                        f"{seen['divisor']:g} says: {_in_ranks(moved, world)}."
                    ),
                    look_at="what divides by the number of ranks: DDP takes the mean over ranks, Opacus divides too.",
                    number=moved,
                    **common,  # type: ignore[arg-type]
                )
            )
        else:
            short = abs(size * math.sqrt(world) - 1.0) < 0.15
            findings.append(
                Finding(
                    fault="noise too small on several ranks" if short else "noise too small",
                    sentence=(
                        f"{names[worst].capitalize()}: the noise is {size:.3g} of what is promised"
                        + (f", 1/√{world}: each rank adds too little, or one adds the share of one." if short else ".")
                    ),
                    look_at=look_at,
                    number=size,
                    level=share,
                    **common,  # type: ignore[arg-type]
                )
            )
    return Measurement(
        name="noise over all ranks",
        sentence=words,
        findings=tuple(findings),
        details={
            "ratio": ratio,
            "tensors": dict(
                zip(names, [math.sqrt(s / n) / unit for s, n in zip(squares, freedom, strict=True)], strict=True)
            ),
        },
    )


def _in_ranks(size: float, world: int) -> str:
    """A factor in words."""
    for power, words in (
        (-1.0, "divided once more by the number of ranks"),
        (1.0, "not divided by the number of ranks"),
    ):
        if abs(size / world**power - 1.0) < 0.1:
            return words
    return "the divisor is another one"


def _seeds(seen: dict[str, Any], level: float) -> Measurement:
    """Noise that several ranks draw must not be the same."""
    drawn, equal, corr = seen["drawn"], seen["equal"], seen["correlation"]
    words = "Normal numbers drawn in a step: " + ", ".join(f"{n} on rank {r}" for r, n in enumerate(drawn)) + "."
    findings: tuple[Finding, ...] = ()
    look_at = "the seed of each rank: torch.manual_seed with the same number on all ranks."
    if corr is not None:
        r, count = corr
        p = _correlation_p(r, count)
        words += f" The noise of the ranks' parts has correlation {r:.3g}."
        if p <= level / 2.0:
            findings = (
                Finding(
                    fault="ranks add the same noise",
                    sentence=f"The noise on two ranks' parts has correlation {r:.3g}, so it can be subtracted.",
                    look_at=look_at,
                    number=r,
                    allowed=0.0,
                    witness="ranks 0 and 1",
                    level=level / 2.0,
                ),
            )
    elif equal and sum(n > 0 for n in drawn) > 1 and _ratio(seen) > 1.2:
        findings = (
            Finding(
                fault="ranks add the same noise",
                sentence=(
                    f"All ranks draw the same noise and add it up: it is {_ratio(seen):.3g} of what is promised, and "
                    "every rank knows all of it."
                ),
                look_at=look_at,
                number=_ratio(seen),
                allowed=1.0,
                witness="the draws of all ranks agree to the bit",
            ),
        )
    return Measurement(name="noise of each rank", sentence=words, findings=findings)


def _correlation_p(r: float, count: int) -> float:
    """The chance of a correlation at least as far from 0 among ``count`` independent pairs of normal numbers."""
    if abs(r) >= 1.0 - 1e-12:
        return 0.0
    return float(2.0 * stats.t.sf(abs(r) * math.sqrt((count - 2.0) / (1.0 - r * r)), count - 2))
