"""What is audited, as data: read from TOML, checked, never executed. An unknown key is an error.

:class:`AuditConfig` says what is audited. How it is run (device, workers) is :class:`Execution` and never changes a
result.
"""

from __future__ import annotations

import dataclasses
import os
import re
import tomllib
from collections.abc import Mapping, Sequence, ValuesView
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

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
_LONGEST_FILE = 2**20
"""Bytes of a config: more is no config."""
_DEEPEST = 20
"""How deeply a config's values may be nested."""
_MOST_LAYERS = 100


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)

    @field_validator("*")
    @classmethod
    def _size(cls, value: Any, info: ValidationInfo) -> Any:
        """Numbers keep within the limits of their names."""
        for one in value if isinstance(value, tuple) else (value,):
            if isinstance(one, (int, float)) and not isinstance(one, bool):
                usual = _validate.WHOLE if isinstance(one, int) else _validate.REAL
                _validate.within(str(info.field_name), one, default=usual)
        return value


SectionKind = TypeVar("SectionKind", bound=_Section)


class DataSection(_Section):
    """Which data, and which part of it."""

    name: str = "digits"
    """``coalmine data list`` shows the names."""
    standardize: bool = False
    """Features that are numbers to mean 0 and variance 1."""
    classes: tuple[Whole, ...] | None = None
    """These classes alone, relabelled 0, 1, …"""
    rows_per_class: Count | None = None
    """The first rows of each class."""
    rows: Count | None = None
    """The first rows of all."""


class ModelSection(_Section):
    """Which network."""

    kind: Literal["logistic", "mlp", "cnn-nasr-2021", "cnn-bernau-2021", "cnn-annamalai-2024"] = "mlp"
    """The network; those with a year are a paper's."""
    hidden: Annotated[tuple[Count, ...], Field(max_length=_MOST_LAYERS)] = (32,)
    """``mlp``: the width of each hidden layer."""
    activation: Literal["relu", "tanh", "sigmoid"] = "relu"
    """``mlp``: between the layers."""
    pooling: Literal["max", "avg"] | None = None
    """``cnn-annamalai-2024``: how pictures are made smaller; ``max`` where nothing is said."""

    @model_validator(mode="after")
    def _pools(self) -> Self:
        if self.pooling is not None and self.kind != "cnn-annamalai-2024":
            raise ValueError(
                f"pooling has no meaning with kind = {self.kind!r}: expected 'cnn-annamalai-2024' beside it"
            )
        return self


class FileStart(_Section):
    """Every training starts at the weights of a file."""

    file: Annotated[str, Field(min_length=1)]
    """A ``.npy`` or ``.npz`` file with the parameters in their order; nothing is unpickled."""


class HeldOutStart(_Section):
    """Every training starts at weights that plain SGD found on rows which are set aside and not audited."""

    held_out: Count
    """How many rows: the first ones of the data; the rows that are audited come after them."""
    epochs: Count
    """How often each of them is used."""
    learning_rate: Positive
    """The size of a step."""
    batch_size: Count
    """Rows in a batch."""


_STARTS = (
    'a number, { file = "start.npz" }, or '
    "{ held_out = 500, epochs = 5, learning_rate = 0.1, batch_size = 32 } (with numbers of yours)"
)
"""The forms of a start, for messages."""


def _start_of(value: object) -> str | None:
    """Which kind of start a value is meant to be; None: none of them."""
    if isinstance(value, (FileStart, HeldOutStart)):
        return "file" if isinstance(value, FileStart) else "held out"
    if isinstance(value, Mapping):
        return "file" if "file" in value else "held out" if set(HeldOutStart.model_fields) & set(value) else None
    return "scale" if isinstance(value, (int, float)) and not isinstance(value, bool) else None


Start = Annotated[
    Annotated[NonNegative, Tag("scale")] | Annotated[FileStart, Tag("file")] | Annotated[HeldOutStart, Tag("held out")],
    Discriminator(_start_of),
]
"""Where trainings start: a scale of Glorot weights, a file, or weights trained on held-out rows."""


ALTERNATIVES = (
    ("steps", "epochs"),
    ("sample_rate", "batch_size"),
    ("noise_multiplier", "target_epsilon", "target_belief"),
)
"""Settings of a training of which exactly one is given."""


class TrainingSection(_Section):
    """How it is trained. Give one of each: steps or epochs, sample rate or batch size, noise or target ε or belief."""

    steps: Count | None = None
    """T: how many steps."""
    epochs: Positive | None = None
    """How often each row is seen on average, instead of ``steps``."""
    sample_rate: Annotated[float, Field(gt=0, le=1, strict=True)] | None = None
    """q: the chance of a row to be in a batch."""
    batch_size: Count | None = None
    """The expected size of a batch, instead of ``sample_rate``."""
    noise_multiplier: NonNegative | None = None
    """σ: the noise, in units of ``clip``."""
    target_epsilon: Positive | None = None
    """The noise that just keeps this ε under ``analysis``."""
    target_belief: Annotated[float, Field(gt=0.5, lt=1, strict=True)] | None = None
    """The noise that just keeps this belief (identifiability)."""
    analysis: Literal["standard", "last-iterate"] = "standard"
    """What ``target_epsilon`` is met under: a guarantee, or the heuristic for the last model."""
    clip: Positive = 1.0
    """C: the norm that each row's gradient is clipped to."""
    learning_rate: NonNegative = 0.1
    """The size of a step."""
    momentum: Annotated[float, Field(ge=0, lt=1, strict=True)] = 0.0
    """Of SGD."""
    regularizer: NonNegative = 0.0
    """λ of λ/2·‖m‖²."""
    sampling: Literal["poisson", "full"] = "poisson"
    """Each row by its own draw, or every row in every step (then neither rate nor batch size)."""
    initialization: Start = 1.0
    """0: every training starts at the same weights; s > 0: Glorot weights times s, drawn anew. Or given weights:
    ``{ file = "start.npz" }``, or ``{ held_out = 500, epochs = 5, learning_rate = 0.1, batch_size = 32 }``."""
    dtype: Literal["float32", "float64"] = "float32"
    """Of weights and gradients."""
    products: Literal["float32", "tf32", "bf16"] = "float32"
    """On a GPU, the factors of products may be rounded: faster, and another result."""
    noise_scale: Literal["clip", "local"] = "clip"
    """``local``: noise for one pair of data sets alone, and no guarantee (identifiability)."""

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
        count = max(1, int(-(-(self.epochs / self.rate(rows) - 1e-9) // 1)))
        most = int(_validate.LIMITS["steps"][1])
        if count > most:
            raise _validate.reject("training.epochs", self.epochs, f"at most {most} steps, and these are {count}")
        return count


class AdversarySection(_Section):
    """One adversary by name, with a number of trials of its own if need be; every other key is its option."""

    model_config = ConfigDict(extra="allow")
    name: str
    """``coalmine adversaries`` shows the names and their options."""
    trials: Annotated[int, Field(ge=4, strict=True)] | None = None
    """Another number of trials for this one."""

    @property
    def options(self) -> dict[str, Any]:
        """The options given."""
        return dict(self.model_extra or {})


class AuditSection(_Section):
    """The question: at which δ and confidence, with how many trials.

    ``control``: whether the same attacks are also played against the training with half its noise, which they must
    refute; without a word, those that cost no training.
    """

    delta: Unit = 1e-5
    """δ of every ε."""
    confidence: Unit = 0.99
    """Of all adversaries together."""
    trials: Annotated[int, Field(ge=4, strict=True)] = 1000
    """For each adversary, both worlds together: trainings, or draws where nothing is trained."""
    seed: Whole = 0
    """All randomness follows from it and from what is audited."""
    claim_epsilon: Positive | None = None
    """Test this ε at ``delta`` instead of all that the mechanism promises."""
    control: bool | None = None
    """Play the positive control for every adversary, or for none."""


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
    added: Literal[True] | None = None  # an audit is named by what it says: one that does not say it keeps its name
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
    """How an audit is run: never changes a result.

    ``device`` is cpu, cuda, one GPU (``cuda:1``) or several (``cuda:0,cuda:1``). ``workers`` 0 means one for each core.
    ``engine``: ``local`` is processes of this machine, ``inline`` this process alone (for a debugger), ``ray`` a Ray
    cluster at ``address`` (without one: that of RAY_ADDRESS, or a new one on this machine). On a cluster each task asks
    for ``cpus``, ``gpus`` (a fraction lets several share one; without a word: 1 where the device is cuda), ``memory``
    bytes, and a GPU of the kind ``accelerator`` (a name that Ray knows, such as H100).
    """

    device: str = "cpu"
    workers: int = 0
    data_dir: str | None = None
    engine: str = "local"
    address: str | None = None
    cpus: float = 1.0
    gpus: float | None = None
    memory: int | None = None
    accelerator: str | None = None

    def __post_init__(self) -> None:
        _validate.instance("device", self.device, str)
        several = self.device.split(",")
        if any(re.fullmatch("cuda(:[0-9]{1,4})?", one) is None for one in several) and self.device != "cpu":
            raise _validate.reject(
                "device", self.device, "'cpu', 'cuda', one GPU ('cuda:1') or several ('cuda:0,cuda:1')"
            )
        _validate.integer("workers", self.workers, at_least=0)
        _validate.choice("engine", self.engine, ("local", "inline", "ray"))
        for name in ("data_dir", "address", "accelerator"):
            if getattr(self, name) is not None:
                _validate.instance(name, getattr(self, name), str)
        _validate.positive("cpus", self.cpus)
        if self.gpus is not None:
            _validate.non_negative("gpus", self.gpus)
        if self.memory is not None:
            _validate.integer("memory", self.memory, at_least=1)
        only = {"address": None, "cpus": 1.0, "gpus": None, "memory": None, "accelerator": None}
        for name, usual in only.items():
            if self.engine != "ray" and getattr(self, name) != usual:
                raise InvalidInputError(f"{name} has no meaning without a cluster: expected engine = 'ray' beside it")
        if self.engine != "local" and len(several) > 1:
            raise _validate.reject("device", self.device, f"one kind of device with engine = {self.engine!r}")

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices by their names."""
        return tuple(self.device.split(","))

    @property
    def worker_count(self) -> int:
        """How many processes train at once on this machine."""
        if self.device != "cpu":
            return 1
        return self.workers or len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else self.workers or 1


def presets() -> tuple[str, ...]:
    """The names of the settings that come with Coalmine."""
    return tuple(sorted(item.name.removesuffix(".toml") for item in _PRESETS.iterdir() if item.name.endswith(".toml")))


def load(
    path: str | os.PathLike[str] | None = None,
    *,
    preset: str | None = None,
    overrides: Sequence[str] = (),
    adversaries: Sequence[str] | None = None,
) -> AuditConfig:
    """The config from a TOML file, or from a preset, with single values replaced (``training.clip=2``).

    ``adversaries`` stand in the place of the config's: names, or names with options (``clipbkd:copies=4,norm=2``).

    >>> load(overrides=["audit.trials=200"]).audit.trials
    200
    >>> load(adversaries=["clipbkd:copies=4"]).adversary[0].options
    {'copies': 4}
    """
    if path is not None and preset is not None:
        raise InvalidInputError(f"preset = {preset!r} is not allowed beside a file: expected one of them")
    if path is not None:
        _validate.instance("path", path, (str, os.PathLike))
        tree = _read(Path(path))
    else:
        name = "default" if preset is None else preset
        if name not in presets():
            raise InvalidInputError(
                f"preset = {_validate.shown(name)} is not known: {_validate.nearest(str(name), presets())}"
            )
        tree = tomllib.loads((_PRESETS / f"{name}.toml").read_text(encoding="utf-8"))
    if not isinstance(overrides, (list, tuple)):
        raise _validate.reject("overrides", overrides, "a list of texts such as training.clip=2")
    for override in overrides:
        _override(tree, override)
    if adversaries:
        if not isinstance(adversaries, (list, tuple)):
            raise _validate.reject("adversaries", adversaries, "a list of names such as clipbkd")
        tree["adversary"] = [_named(one) for one in adversaries]
    return parse(tree)


def parse(tree: Mapping[str, Any]) -> AuditConfig:
    """The config from plain data; every complaint names the key, the value given and what is allowed."""
    return checked(AuditConfig, tree)


def checked(kind: type[SectionKind], tree: object) -> SectionKind:
    """A config of that kind from plain data, as :func:`parse`."""
    if not isinstance(tree, Mapping):
        raise _validate.reject("config", tree, "a table of sections")
    if _depth(tree) > _DEEPEST:
        raise InvalidInputError(f"the config is nested too deeply: expected at most {_DEEPEST} levels")
    if isinstance(tree.get("adversary"), Mapping):
        raise InvalidInputError("adversary is one table: expected a list of them, written [[adversary]]")
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        raise InvalidInputError(_explain(error, kind)) from None


def _depth(tree: object) -> int:
    """How deeply lists and tables are nested, as far as it matters."""
    layer, depth = [tree], 0
    while layer and depth <= _DEEPEST:
        inner = [one.values() if isinstance(one, Mapping) else one for one in layer]
        layer = [item for one in inner if isinstance(one, (list, tuple, ValuesView)) for item in one]
        depth += 1
    return depth


def _read(path: Path) -> dict[str, Any]:
    name = f"config file {_validate.shown(str(path))}"
    try:
        with path.open("rb") as file:
            content = file.read(_LONGEST_FILE + 1)
    except OSError as error:
        assigns = "=" in path.name and isinstance(error, FileNotFoundError)
        hint = f"; to replace a value of the config: --set {_validate.shown(str(path))}" if assigns else ""
        raise InvalidInputError(f"{name} cannot be read: {error.strerror}{hint}") from None
    except ValueError as error:  # a name that no file can have
        raise InvalidInputError(f"{name} cannot be read: {error}") from None
    if len(content) > _LONGEST_FILE:
        raise InvalidInputError(f"{name} is not a config: it has more than {_LONGEST_FILE} bytes")
    try:
        return _toml(content.decode("utf-8-sig"))  # some editors begin a file with a byte-order mark
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"{name} is not TOML: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise InvalidInputError(f"{name} is not TOML: {error}") from None


def _toml(text: str) -> dict[str, Any]:
    """The tree of a TOML text; whatever cannot be read is a TOMLDecodeError."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise tomllib.TOMLDecodeError("nested too deeply") from None
    except tomllib.TOMLDecodeError:
        raise
    except ValueError as error:  # numbers of thousands of digits
        raise tomllib.TOMLDecodeError(f"{error}") from None


def _named(text: str) -> dict[str, Any]:
    """An adversary from ``name`` or ``name:option=value,option=value``; values are TOML, or bare words."""
    name, colon, rest = text.partition(":")
    found: dict[str, Any] = {"name": name.strip()}
    for part in rest.split(",") if colon else ():
        option, equals, value = part.partition("=")
        if not equals or not option.strip() or option.strip() in found:
            raise _validate.reject("adversary", text, "a name, or name:option=value,option=value, every option once")
        found[option.strip()] = _value(value)
    return found


def _value(text: str) -> Any:
    """A value in TOML, or a bare word for a string."""
    try:
        return _toml(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()


def _override(tree: dict[str, Any], text: str) -> None:
    """Put ``section.key=value`` into the tree; the value is TOML, or a bare word for a string."""
    _validate.instance("set", text, str)
    name, equals, value = text.partition("=")
    keys = name.strip().split(".")
    if not equals or len(keys) != 2 or not all(keys):
        raise _validate.reject("set", text, "section.key=value, such as training.noise_multiplier=2")
    parsed = _value(value)
    section = tree.setdefault(keys[0], {})
    if not isinstance(section, dict) or keys[0] == "adversary":
        raise _validate.reject(
            "set", text, "a key of a section; adversaries are set in the file or by --adversary name:option=value"
        )
    # One of several alternatives replaces the others.
    for pair in ALTERNATIVES:
        if keys[0] == "training" and keys[1] in pair:
            for other in pair:
                section.pop(other, None)
    if keys == ["audit", "trials"]:  # for every adversary, also for one that has a number of its own
        adversaries = tree.get("adversary")
        for one in adversaries if isinstance(adversaries, list) else ():
            if isinstance(one, dict) and _is_count(one.get("trials")):  # else it is refused when the whole is checked
                del one["trials"]
    if keys == ["training", "sampling"] and parsed == "full":  # then a rate has no meaning any more
        section.pop("sample_rate", None)
        section.pop("batch_size", None)
    section[keys[1]] = parsed


def _is_count(trials: object) -> bool:
    """Whether an adversary may have this number of trials of its own."""
    try:
        return AdversarySection.model_validate({"name": "any", "trials": trials}).trials is not None
    except ValidationError:
        return False


def _explain(error: ValidationError, kind: type[BaseModel]) -> str:
    """The first complaint of pydantic in our words."""
    first = error.errors(include_url=False)[0]
    place = [str(part) for part in first["loc"]]
    start = place.pop(2) if place[1:2] == ["initialization"] and len(place) > 2 else ""  # our word, not a key
    name = ".".join(place)
    if first["type"] == "extra_forbidden":
        section: Any = kind
        for part in place[:-1]:
            section = section.model_fields[part].annotation
        if start:
            section = FileStart if start == "file" else HeldOutStart
        return f"{name} is not a known key: {_validate.nearest(place[-1], section.model_fields)}"
    if first["type"] == "value_error":
        problem = str(first["ctx"]["error"])
        size = problem.startswith(f"{place[-1]} = ")  # of a number: the message has the key already
        return ".".join(place[:-1]) + f".{problem}" if size else f"{name}: {problem}"
    if first["type"] == "union_tag_not_found":
        return str(_validate.reject(name, first["input"], _STARTS))
    if first["type"] == "missing":
        return f"{name} is missing: it has no default"
    listed = place[0] == "adversary"
    shapes = {
        "model_type": "a table, written " + ("[[adversary]]" if listed else f"[{name}]"),
        "tuple_type": "a list of tables, each written [[adversary]]" if listed else "a list",
        "too_short": f"a list of at least {first.get('ctx', {}).get('min_length')}",
        "too_long": f"a list of at most {first.get('ctx', {}).get('max_length')}",
    }
    if first["type"] in shapes:
        return str(_validate.reject(name, first["input"], shapes[first["type"]]))
    allowed = first["msg"].replace("Input should be ", "expected ").replace("expected gr", "expected a number gr")
    allowed = allowed.replace("expected less", "expected a number less")
    return f"{name} = {_validate.shown(first['input'])} is not allowed: {allowed}"
