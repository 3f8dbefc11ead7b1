"""What is audited, as data: read from TOML, checked, never executed. An unknown key is an error.

:class:`AuditConfig` says what is audited. How it is run (device, workers) is :class:`Execution` and never changes a
result.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from coalmine import _validate
from coalmine.errors import InvalidInputError
from coalmine.records import DpSgd

# Strict: a text or a truth value is no number, and 1.5 is no count (a whole number may stand for a float).
Unit = Annotated[float, Field(gt=0, lt=1, strict=True)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]
Count = Annotated[int, Field(ge=1, strict=True)]
Whole = Annotated[int, Field(ge=0, strict=True)]


_PRESETS = resources.files("coalmine.auditing") / "presets"


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)


class DataSection(_Section):
    """Which data, and which part of it; ``standardize`` brings features that are numbers to mean 0 and variance 1."""

    name: str = "digits"
    standardize: bool = False
    classes: tuple[Whole, ...] | None = None
    rows_per_class: Count | None = None
    rows: Count | None = None


class ModelSection(_Section):
    """Which network."""

    kind: Literal["logistic", "mlp", "cnn-nasr-2021", "cnn-bernau-2021"] = "mlp"
    hidden: tuple[Count, ...] = (32,)
    activation: Literal["relu", "tanh", "sigmoid"] = "relu"


ALTERNATIVES = (
    ("steps", "epochs"),
    ("sample_rate", "batch_size"),
    ("noise_multiplier", "target_epsilon", "target_belief"),
)
"""Settings of a training of which exactly one is given."""


class TrainingSection(_Section):
    """How it is trained. Give one of each: steps or epochs, sample rate or batch size, noise or target ε or belief."""

    steps: Count | None = None
    epochs: Positive | None = None
    sample_rate: Annotated[float, Field(gt=0, le=1, strict=True)] | None = None
    batch_size: Count | None = None
    noise_multiplier: NonNegative | None = None
    target_epsilon: Positive | None = None
    target_belief: Annotated[float, Field(gt=0.5, lt=1, strict=True)] | None = None
    analysis: Literal["standard", "last-iterate"] = "standard"
    clip: Positive = 1.0
    learning_rate: NonNegative = 0.1
    momentum: Annotated[float, Field(ge=0, lt=1, strict=True)] = 0.0
    regularizer: NonNegative = 0.0
    sampling: Literal["poisson", "full"] = "poisson"
    initialization: NonNegative = 1.0
    dtype: Literal["float32", "float64"] = "float32"
    products: Literal["float32", "tf32", "bf16"] = "float32"
    noise_scale: Literal["clip", "local"] = "clip"

    @model_validator(mode="after")
    def _pairs(self) -> Self:
        for names in ALTERNATIVES:
            given = [name for name in names if getattr(self, name) is not None]
            if self.sampling == "full" and "sample_rate" in names:
                if given:
                    raise ValueError(f"{given[0]} has no meaning with sampling = 'full': every step uses every row")
            elif len(given) != 1:
                *first, last = names
                got = {0: "neither" if len(names) == 2 else "none", 2: "both"}.get(len(given), "all")
                raise ValueError(f"expected one of {', '.join(first)} and {last}, got {got}")
        if self.noise_scale == "local" and self.sampling != "full":
            raise ValueError("noise_scale = 'local' is that of the full batch: expected sampling = 'full' with it")
        return self

    def rate(self, rows: int) -> float:
        """q, for data of that many rows."""
        if self.sampling == "full":
            return 1.0
        if self.sample_rate is not None:
            return self.sample_rate
        assert self.batch_size is not None
        if self.batch_size > rows:
            raise _validate.reject("training.batch_size", self.batch_size, f"at most the number of rows, {rows}")
        return self.batch_size / rows

    def step_count(self, rows: int) -> int:
        """T: the steps given, or as many as the epochs need at this rate, rounded up."""
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        # The small slack keeps 24 epochs at 250 of 6000 at 576 steps when the quotient is 576.0000000000001.
        return max(1, int(-(-(self.epochs / self.rate(rows) - 1e-9) // 1)))


class AdversarySection(BaseModel):
    """One adversary by name, with a number of trials of its own if need be; every other key is its option."""

    model_config = ConfigDict(frozen=True, extra="allow")
    name: str
    trials: Annotated[int, Field(ge=4, strict=True)] | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The options given."""
        return dict(self.model_extra or {})


class AuditSection(_Section):
    """The question: at which δ and confidence, with how many trials for each adversary (both worlds together)."""

    delta: Unit = 1e-5
    confidence: Unit = 0.99
    trials: Annotated[int, Field(ge=4, strict=True)] = 1000
    seed: Whole = 0
    claim_epsilon: Positive | None = None


class AuditConfig(_Section):
    """Everything that is audited. :func:`load` reads it from TOML."""

    data: DataSection = DataSection()
    model: ModelSection = ModelSection()
    training: TrainingSection = TrainingSection(epochs=10, sample_rate=0.05, target_epsilon=4.0)
    audit: AuditSection = AuditSection()
    adversary: tuple[AdversarySection, ...] = Field(
        default=(AdversarySection(name="clipbkd"), AdversarySection(name="malicious-dataset")), min_length=1
    )


class FunctionConfig(_Section):
    """The audit of a user's own training, as data: the names tell what was run, and are never executed."""

    train: str
    score: str
    worlds: str
    relation: Literal["add_remove", "replace"]
    copies: Count
    mechanism: DpSgd | None = None
    audit: AuditSection

    @property
    def data(self) -> DataSection:
        """The user's data, by the name of the function that builds it."""
        return DataSection(name=self.worlds or "the user's data")

    @property
    def adversary(self) -> tuple[AdversarySection, ...]:
        """The one adversary: the user's own score."""
        return (AdversarySection(name="own training"),)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Execution:
    """How an audit is run: never changes a result. ``workers`` 0 means one for each core."""

    device: str = "cpu"
    workers: int = 0
    data_dir: str | None = None

    def __post_init__(self) -> None:
        _validate.choice("device", self.device, ("cpu", "cuda"))
        _validate.integer("workers", self.workers, at_least=0)

    @property
    def worker_count(self) -> int:
        """How many processes train at once."""
        if self.device == "cuda":
            return 1
        return self.workers or len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else self.workers or 1


def presets() -> tuple[str, ...]:
    """The names of the settings that come with Coalmine."""
    return tuple(sorted(item.name.removesuffix(".toml") for item in _PRESETS.iterdir() if item.name.endswith(".toml")))


def load(
    path: str | os.PathLike[str] | None = None,
    *,
    preset: str | None = None,
    overrides: Iterable[str] = (),
) -> AuditConfig:
    """The config from a TOML file, or from a preset, with single values replaced (``training.clip=2``).

    >>> load(overrides=["audit.trials=200"]).audit.trials
    200
    """
    if path is not None and preset is not None:
        raise InvalidInputError(f"preset = {preset!r} is not allowed beside a file: expected one of them")
    if path is not None:
        tree = _read(Path(path))
    else:
        name = preset or "default"
        if name not in presets():
            raise InvalidInputError(f"preset = {name!r} is not known: {_suggest(name, presets())}")
        tree = tomllib.loads((_PRESETS / f"{name}.toml").read_text(encoding="utf-8"))
    for override in overrides:
        _override(tree, override)
    return parse(tree)


def parse(tree: Mapping[str, Any]) -> AuditConfig:
    """The config from plain data; every complaint names the key, the value given and what is allowed."""
    try:
        return AuditConfig.model_validate(tree)
    except ValidationError as error:
        raise InvalidInputError(_explain(error)) from None


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInputError(f"config file {str(path)!r} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"config file {str(path)!r} is not TOML: {error}") from None


def _override(tree: dict[str, Any], text: str) -> None:
    """Put ``section.key=value`` into the tree; the value is TOML, or a bare word for a string."""
    name, equals, value = text.partition("=")
    keys = name.strip().split(".")
    if not equals or len(keys) != 2 or not all(keys):
        raise _validate.reject("set", text, "section.key=value, such as training.noise_multiplier=2")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()
    section = tree.setdefault(keys[0], {})
    if not isinstance(section, dict):
        raise _validate.reject("set", text, "a key of a section; adversaries are set in the file")
    # One of several alternatives replaces the others.
    for pair in ALTERNATIVES:
        if keys[0] == "training" and keys[1] in pair:
            for other in pair:
                section.pop(other, None)
    if keys == ["audit", "trials"]:  # for every adversary, also for one that has a number of its own
        for one in tree.get("adversary", ()):
            one.pop("trials", None)
    if keys == ["training", "sampling"] and parsed == "full":  # then a rate has no meaning any more
        section.pop("sample_rate", None)
        section.pop("batch_size", None)
    section[keys[1]] = parsed


def _explain(error: ValidationError) -> str:
    """The first complaint of pydantic in our words."""
    first = error.errors(include_url=False)[0]
    place = [str(part) for part in first["loc"]]
    name = ".".join(place)
    if first["type"] == "extra_forbidden":
        section: Any = AuditConfig
        for part in place[:-1]:
            section = section.model_fields[part].annotation
        return f"{name} is not a known key: {_suggest(place[-1], list(section.model_fields))}"
    if first["type"] == "value_error":
        return f"{name}: {first['ctx']['error']}"
    if first["type"] == "missing":
        return f"{name} is missing: it has no default"
    allowed = first["msg"].replace("Input should be ", "expected ").replace("expected gr", "expected a number gr")
    return f"{name} = {first['input']!r} is not allowed: {allowed.replace('expected less', 'expected a number less')}"


def _suggest(word: str, known: Iterable[str]) -> str:
    names = list(known)
    close = difflib.get_close_matches(word, names, n=1)
    return f"did you mean {close[0]!r}?" if close else "expected one of " + ", ".join(names)
