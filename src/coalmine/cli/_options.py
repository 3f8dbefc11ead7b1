"""The options that several commands share, with one wording."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

if TYPE_CHECKING:
    from coalmine.records import Relation, Sampling


def one_of(*choices: str) -> dict[str, Any]:
    """For an option with a few values: the help lists them and the shell completes them.

    The value itself is checked where it is used, which names the option, the value and what is allowed.
    """
    return {"metavar": f"[{'|'.join(choices)}]", "autocompletion": beginning_with(lambda: choices)}


def beginning_with(choices: Callable[[], Any]) -> Callable[[str], list[str]]:
    """A completion: those of the choices that begin as what was typed."""

    def complete(incomplete: str) -> list[str]:
        return [one for one in choices() if one.startswith(incomplete)]

    return complete


def preset_names() -> list[str]:
    """The settings that come with Coalmine."""
    from coalmine.auditing.config import presets

    return list(presets())


DEVICES = ("cpu", "cuda")
CANARIES = (
    "mislabeled",
    "blank",
    "extreme",
    "low-variance",
    "random-tokens",
    "new-tokens",
    "dirac",
    "random-directions",
)
"""What canaries of one training can be."""
DeviceName = Annotated[
    str,
    typer.Option(
        "--device",
        help="cpu, cuda, one GPU (cuda:1) or several (cuda:0,cuda:1).",
        autocompletion=beginning_with(lambda: DEVICES),
    ),
]
Preset = Annotated[
    str | None,
    typer.Option(
        "--preset",
        help="A setting that comes with Coalmine, instead of a file.",
        autocompletion=beginning_with(preset_names),
    ),
]
WorkerCount = Annotated[
    int,
    typer.Option(
        "--workers", help="Processes that train at once; 0 means one for each core (with --engine ray: all it has)."
    ),
]
EngineName = Annotated[
    str,
    typer.Option(
        "--engine", help="This machine, a Ray cluster, or this process alone.", **one_of("local", "ray", "inline")
    ),
]
Address = Annotated[
    str | None, typer.Option("--address", help="With --engine ray: the cluster (auto, or ray://host:port).")
]
_Cpus = Annotated[float, typer.Option(help="With --engine ray: processor cores for each task.")]
_Gpus = Annotated[float | None, typer.Option(help="With --engine ray: GPUs for each task; a fraction shares one.")]
_Memory = Annotated[int | None, typer.Option(help="With --engine ray: bytes of memory for each task.")]
_Accelerator = Annotated[str | None, typer.Option(help="With --engine ray: the kind of GPU, by Ray's name (H100).")]
_EXECUTION: dict[str, tuple[Any, Any]] = {
    "device": (DeviceName, "cpu"),
    "workers": (WorkerCount, 0),
    "engine": (EngineName, "local"),
    "address": (Address, None),
    "cpus": (_Cpus, 1.0),
    "gpus": (_Gpus, None),
    "memory": (_Memory, None),
    "accelerator": (_Accelerator, None),
}
"""Where and how a command trains: the options of an Execution, and what they are unless told."""
KeepIn = Annotated[
    Path | None, typer.Option("--store", help="Keep the result there too, for coalmine runs and coalmine view.")
]
Called = Annotated[str | None, typer.Option("--name", help="With --store: what to call it; for lists, and for people.")]
Tagged = Annotated[
    list[str] | None, typer.Option("--tag", metavar="<str>", help="With --store: a word to find it by; repeatable.")
]
SampleRate = Annotated[
    float, typer.Option("--sample-rate", help="q: probability that a row is in a batch (batch size / rows), 0 to 1.")
]
NoiseMultiplier = Annotated[
    float, typer.Option("--noise-multiplier", help="σ: noise standard deviation over the clipping norm, above 0.")
]
Steps = Annotated[int, typer.Option("--steps", help="T: number of training steps, at least 1.")]
RelationName = Annotated[
    str,
    typer.Option(
        "--relation",
        help="Neighbours: a row added or removed, or a row replaced.",
        **one_of("add-remove", "replace"),
    ),
]
SamplingName = Annotated[
    str,
    typer.Option(
        "--sampling",
        help="How batches are drawn; shuffle gets no amplified guarantee.",
        **one_of("poisson", "full", "shuffle"),
    ),
]


def with_execution(command: Callable[..., int]) -> Callable[..., int]:
    """A command whose parameter ``execution`` is an Execution: Typer shows the options of one in its place.

    Where the data lie is an option of the command's own, ``data_dir``, and part of the Execution too.
    """
    hints = get_type_hints(command, include_extras=True)
    parameters: list[inspect.Parameter] = []
    for one in inspect.signature(command).parameters.values():
        if one.name == "execution":
            parameters += [
                one.replace(name=name, annotation=kind, default=default) for name, (kind, default) in _EXECUTION.items()
            ]
        else:
            parameters.append(one.replace(annotation=hints[one.name]))

    @functools.wraps(command)
    def called(**given: Any) -> int:
        from coalmine.auditing.config import Execution

        chosen = {name: given.pop(name) for name in _EXECUTION}
        return command(**given, execution=Execution(data_dir=given["data_dir"], **chosen))

    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {one.name: one.annotation for one in parameters}
    return called


def relation_named(name: str) -> Relation:
    """The neighbouring relation of that name."""
    from coalmine.records import Relation

    return Relation.parse(underscored(name))


def sampling_named(name: str) -> Sampling:
    """The sampling of that name."""
    from coalmine.records import Sampling

    return Sampling.parse(underscored(name))


def underscored(name: str) -> str:
    """``last-iterate`` as ``last_iterate``: both spellings are taken."""
    return name.replace("-", "_")


def check_kept(store: Path | None, name: str | None, tags: list[str] | None) -> None:
    """Refuse a store that cannot be written, or a name that cannot be kept, before anything takes time."""
    from coalmine import _validate
    from coalmine.errors import InvalidInputError

    if store is None:
        given = [option for option, value in {"name": name, "tag": tags}.items() if value]
        if given:
            raise InvalidInputError(f"{given[0]} is not allowed without --store: it is what a stored result is called")
        return
    if name is not None:
        _validate.label("name", name)
    _validate.labels("tag", tags or ())
    from coalmine.store import results

    results.check(store)
