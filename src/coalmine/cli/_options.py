"""The options that several commands share, with one wording."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from coalmine.records import Relation, Sampling

DEVICES = ("cpu", "cuda")
DeviceName = Annotated[str, typer.Option("--device", help="cpu, cuda, one GPU (cuda:1) or several (cuda:0,cuda:1).")]
WorkerCount = Annotated[
    int,
    typer.Option(
        "--workers", help="Processes that train at once; 0 means one for each core (with --engine ray: all it has)."
    ),
]
EngineName = Annotated[
    str, typer.Option("--engine", help="local (this machine), ray (a Ray cluster), or inline (this process alone).")
]
Address = Annotated[
    str | None, typer.Option("--address", help="With --engine ray: the cluster (auto, or ray://host:port).")
]
Cpus = Annotated[float, typer.Option("--cpus", help="With --engine ray: processor cores for each task.")]
Gpus = Annotated[
    float | None, typer.Option("--gpus", help="With --engine ray: GPUs for each task; a fraction shares one.")
]
Memory = Annotated[int | None, typer.Option("--memory", help="With --engine ray: bytes of memory for each task.")]
Accelerator = Annotated[
    str | None, typer.Option("--accelerator", help="With --engine ray: the kind of GPU, by Ray's name (H100).")
]
SampleRate = Annotated[
    float, typer.Option("--sample-rate", help="q: probability that a row is in a batch (batch size / rows), 0 to 1.")
]
NoiseMultiplier = Annotated[
    float, typer.Option("--noise-multiplier", help="σ: noise standard deviation over the clipping norm, above 0.")
]
Steps = Annotated[int, typer.Option("--steps", help="T: number of training steps, at least 1.")]
RelationName = Annotated[
    str, typer.Option("--relation", help="Neighbours: add_remove (a row more or less) or replace (a row changed).")
]
SamplingName = Annotated[
    str, typer.Option("--sampling", help="Batches: poisson, full, or shuffle (which gets no amplified guarantee).")
]


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
