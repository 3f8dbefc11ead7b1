"""Bad inputs by number: case ``i`` of a seed is always the same."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_type_hints

import fuzz_files
import fuzz_values
import numpy as np
import typer

import coalmine
from coalmine import _validate, bounds, records
from coalmine.accounting import calibrate, counterexamples, encoding, full_batch, last_iterate, standard
from coalmine.auditing import config
from coalmine.cli import app
from coalmine.identifiability import advantage, belief, choose, estimates, sensitivity
from coalmine.records import Counts, DpSgd, MechanismClaim, OneRunScores, Scores


@dataclasses.dataclass(frozen=True)
class Case:
    """A command line with its files, or a call of a public function."""

    kind: str
    arguments: tuple[str, ...] = ()
    files: Mapping[str, bytes | None] = dataclasses.field(default_factory=dict)
    call: Callable[[], Any] | None = None
    words: str = ""
    nonsense: str = ""
    """An argument that has no meaning: accepting it is a fault."""

    def __str__(self) -> str:
        if self.call is not None:
            return self.words
        text = " ".join(
            f"{word!r}" if not word.isprintable() or not word or " " in word else word for word in self.arguments
        )
        return "coalmine " + (text if len(text) <= 300 else f"{text[:200]} … ({len(text)} characters)")


def case(seed: int, number: int) -> Case:
    """Case ``number`` of ``seed``."""
    rng = random.Random(f"coalmine {seed} {number}")
    make = rng.choices((_command, _edge, _audit, _bound, _stored, _call), weights=(30, 15, 25, 8, 5, 17))[0]
    return make(rng)


# ---- commands ----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Parameter:
    """An option or an argument; ``kind`` is "int", "float", "Path", "bool" or "str"."""

    name: str
    kind: str
    opts: tuple[str, ...]
    required: bool
    is_option: bool


@dataclasses.dataclass(frozen=True)
class _Leaf:
    """A command with its parameters."""

    path: tuple[str, ...]
    parameters: tuple[_Parameter, ...]


def _parameter(given: Any, hints: Mapping[str, str]) -> _Parameter:
    kinds = [kind for kind in ("bool", "int", "float", "Path") if kind in hints[given.name]]
    return _Parameter(
        given.name, (kinds or ["str"])[0], tuple(given.opts), given.required, given.param_type_name == "option"
    )


@functools.cache
def leaves() -> tuple[_Leaf, ...]:
    """Every command, found by walking the tree that Typer makes."""

    def walk(command: Any, path: tuple[str, ...]) -> Iterator[_Leaf]:
        inner = getattr(command, "commands", None)
        if not inner:
            # Typer's own classes differ from version to version; the function's annotations do not.
            hints = {name: str(kind) for name, kind in get_type_hints(inspect.unwrap(command.callback)).items()}
            yield _Leaf(path, tuple(_parameter(one, hints) for one in command.params if one.name in hints))
            return
        for name, one in inner.items():
            if (*path, name) != ("view", "open"):  # serves until it is told to end
                yield from walk(one, (*path, name))

    return tuple(walk(typer.main.get_command(app), ()))


_SANE = {
    "sample_rate": "0.1",
    "noise_multiplier": "1",
    "steps": "10",
    "delta": "1e-5",
    "epsilon": "2",
    "false_positives": "2",
    "negatives": "100",
    "false_negatives": "60",
    "positives": "100",
    "canaries": "100",
    "guesses": "50",
    "correct": "40",
    "scores": "scores.csv",
    "config": "config.toml",
    "preset": "default",
    "set_": "audit.trials=8",
    "changes": "audit.delta=1e-6",
    "belief": "0.9",
    "advantage": "0.3",
    "trials": "16",
    "workers": "1",
    "engine": "inline",
    "address": "auto",
    "device": "cpu",
    "store": "store.db",
    "run": fuzz_files.RUN,
    "name": "synthetic",
    "folder": "pages",
    "names": "synthetic",
    "data_dir": "folder",
    "report": "out.html",
    "output": "out.html",
    "figure": "out.svg",
    "figures": "pictures",
    "train": "own:train",
    "score": "own:score",
    "worlds": "own:worlds",
    "claim_dpsgd": "0.1,1,10",
    "cell": "x",
    "relation": "replace",
    "sampling": "poisson",
    "method": "gdp",
    "family": "standard",
    "threshold": "holdout:0.5",
    "analysis": "rdp",
    "example": "linear",
    "dissimilarity": "euclidean",
    "scale": "quick",
}
_DEFAULT = {"int": "3", "float": "0.5"}
_NEEDED = {
    "account": ("delta",),
    "bound": ("false_positives", "negatives", "false_negatives", "positives"),
    "choose": ("belief", "delta"),
}
_SOUND: dict[str, Callable[[float], bool]] = {
    "sample_rate": lambda value: 0 <= value <= 1,
    "noise_multiplier": lambda value: value > 0,
    "steps": lambda value: value >= 1,
    "delta": lambda value: 0 <= value < 1,
    "epsilon": lambda value: value >= 0,
    "confidence": lambda value: 0 < value < 1,
    "power": lambda value: 0 < value < 1,
    "regularizer": lambda value: 0 <= value <= 1,
    "belief": lambda value: 0.5 < value < 1,
    "advantage": lambda value: 0 < value < 1,
    "copies": lambda value: value >= 1,
    "count": lambda value: value >= 1,
    "rows": lambda value: value >= 1,
    "trials": lambda value: value >= 2,
    "trainings": lambda value: value >= 1,
    "timeout": lambda value: value > 0,
}

_STUDIES = ("jagielski-2020/table-2", "nasr-2021/figure-3", "bernau-2021/table-2", "last-iterate-2024/figure-1")
_OWN = b"""
import sys, os
worlds = ([1.0], [1.0, 2.0])
def train(dataset, seed):
    return sum(dataset)
def score(model):
    return model
"""
_SCORES = b"world,score\n" + b"".join(b"%d,%.3f\n" % (row % 2, row * 0.37 % 1) for row in range(40))


def _nasty(rng: random.Random, parameter: _Parameter) -> str:
    """A bad value that fits the parameter's type more or less."""
    kind = parameter.kind
    if rng.random() < 0.1:
        return fuzz_values.word(rng)
    if parameter.name in ("set_", "changes"):
        return fuzz_files.override(rng)
    if kind in ("int", "float"):
        return fuzz_values.word(rng, "n")
    if kind == "Path" or parameter.name == "data_dir":
        return fuzz_values.word(rng, "p")
    if parameter.name == "threshold":
        rule = rng.choice(("holdout:", "bonferroni:", "given:", "sup", "dkw", "optimistic", ""))
        return rule + rng.choice(("", fuzz_values.word(rng, "n"), "0,1,2", "1," * 5000))
    if parameter.name == "claim_dpsgd":
        return ",".join(fuzz_values.word(rng, "n") for _ in range(rng.choice((1, 3, 3, 3, 4))))
    return fuzz_values.word(rng, "tttn")


def _command(rng: random.Random) -> Case:
    """Any command with sane values and a few that are not."""
    if rng.random() < 0.03:
        words = tuple(fuzz_values.word(rng) for _ in range(rng.randrange(4)))
        return Case("command", words)
    leaf = rng.choices(leaves(), weights=[len(one.parameters) for one in leaves()])[0]
    name = leaf.path[-1]
    options = {one.name: one for one in leaf.parameters if one.is_option}
    given: dict[str, str | None] = {}
    for one in options.values():
        wanted = one.required or one.name in _NEEDED.get(name, ())
        if one.name in ("store", "workers", "engine"):
            wanted = rng.random() < 0.8
        if wanted or rng.random() < 0.06:
            given[one.name] = None if one.kind == "bool" else _sane(one)
    positional = [_positional(rng, leaf, one) for one in leaf.parameters if not one.is_option]
    for _ in range(rng.choice((0, 1, 1, 1, 2, 2, 3))):
        kind = rng.randrange(20)
        if kind <= 15 and options:
            one = rng.choice(list(options.values()))
            given[one.name] = None if one.kind == "bool" else _nasty(rng, one)
        elif kind == 16 and given:
            given.pop(rng.choice(list(given)))
        elif positional:
            positional[rng.randrange(len(positional))] = fuzz_values.word(rng, "ttp")
    words: list[str] = []
    for key, value in given.items():
        option = rng.choice(options[key].opts)
        if value is None:
            words.append(option)
        elif rng.random() < 0.5 and option.startswith("--"):
            words.append(f"{option}={value}")
        else:
            words += [option, value]
    if rng.random() < 0.04:
        words.append(
            rng.choice(("--sample-rat", "--x", "-", "--", "--help", "--=", "--steps", "--json=1", "-o", "extra"))
        )
    files = {"scores.csv": _SCORES, "own.py": _OWN, "config.toml": fuzz_files.config_text(rng)}
    files["store.db"] = fuzz_files.store_bytes(rng) if rng.random() < 0.3 else fuzz_files._good_store()
    return Case("command", (*leaf.path, *positional, *words), files, nonsense=_nonsense(options, given, words))


def _sane(parameter: _Parameter) -> str:
    return _SANE.get(parameter.name, _DEFAULT.get(parameter.kind, "x"))


def _positional(rng: random.Random, leaf: _Leaf, parameter: _Parameter) -> str:
    if leaf.path[0] == "study":
        return rng.choice(_STUDIES)
    return _SANE.get(parameter.name, "x")


def _nonsense(options: Mapping[str, _Parameter], given: Mapping[str, str | None], words: list[str]) -> str:
    """A value that no command should take."""
    if "--help" in words:
        return ""
    for name, value in given.items():
        if value is None or options[name].kind not in ("int", "float"):
            continue
        try:
            number = float(value)
        except (ValueError, OverflowError):
            return f"{name} = {value[:50]}"
        if not _SOUND.get(name, lambda number: 0 <= number < float("inf"))(number):
            return f"{name} = {value[:50]}"
    return ""


_EDGES = ("0", "1", "1e-300", "1e-30", "1e-9", "0.999999999999", "700", "1e6", "1e30", "9223372036854775807")
_EXAMPLES = {
    "example": ("regularizer", "zeroing", "one-bit", "linear"),
    "method": ("clopper-pearson", "gdp", "dpsgd", "bayesian", "anytime", "one-run", "one-run-fdp"),
    "analysis": ("standard", "rdp", "gdp-clt", "last-iterate", "last-iterate-worst", "full-batch"),
    "relation": ("add_remove", "replace"),
    "sampling": ("poisson", "full", "shuffle"),
    "threshold": ("sup", "holdout", "bonferroni", "dkw", "optimistic", "given:0.5"),
}
"""Words that options take."""


def _edge(rng: random.Random) -> Case:
    """A command of numbers alone, with values at the very edge of what is allowed: accepted, and still quick."""
    names = ("account", "bound", "calibrate", "choose", "counterexample", "plan")
    leaf = rng.choice([one for one in leaves() if one.path[0] in names])
    given = {}
    for one in leaf.parameters:
        if one.required or one.name in _NEEDED.get(leaf.path[0], ()):
            given[one.opts[0]] = _sane(one)
        elif one.name in _EXAMPLES and rng.random() < 0.4:
            given[one.opts[0]] = rng.choice(_EXAMPLES[one.name])
    if given.get("--method") == "dpsgd":
        given |= {"--sample-rate": "0.1", "--steps": "10"}
    if leaf.path[0] == "bound" and ("--threshold" in given or rng.random() < 0.3):
        given = {key: value for key, value in given.items() if not key.endswith("tives")} | {"--scores": "scores.csv"}
    if given.get("--method", "").startswith("one-run") and leaf.path[0] == "bound":
        counted = {"--canaries": "100", "--guesses": "50", "--correct": "40"}
        given = {"--delta": "1e-5", "--method": given["--method"], "--one-run": "", **counted}
    if leaf.path[0] == "plan" and rng.random() < 0.5:
        given["--attack-epsilon"] = rng.choice(("2.0000000001", "2.1", "3", "100", "1e6"))
    numeric = [one for one in leaf.parameters if one.kind in ("int", "float")]
    for one in rng.sample(numeric, rng.choice((1, 1, 2))):
        low, high = _validate.LIMITS.get(one.name, (1e-30, 1e30))
        edges = (f"{low:g}", f"{high:g}") if one.kind == "float" else (f"{low:.0f}", f"{high:.0f}")
        given[one.opts[0]] = rng.choice((*edges, *edges, rng.choice(_EDGES)))
    words = [word for key, value in given.items() for word in (key, value) if word]
    return Case("edge", (*leaf.path, *words), {"scores.csv": _SCORES})


def _audit(rng: random.Random) -> Case:
    """A bad config with the commands that read one."""
    files: dict[str, bytes | None] = {"config.toml": fuzz_files.config_text(rng)}
    if rng.random() < 0.15:
        words = ["choose", "--config", "config.toml", "--belief", "0.9"]
    elif rng.random() < 0.2:
        words = ["audit", "--workers", "1"]
        for _ in range(rng.choice((1, 1, 2))):
            words += ["--set", fuzz_files.override(rng)]
    else:
        words = ["audit", "config.toml", "--workers", "1"]
        if rng.random() < 0.3:
            words += ["--trials", rng.choice(("16", "16", "16", fuzz_values.word(rng, "n")))]
        if rng.random() < 0.3:
            words += ["--set", fuzz_files.override(rng)]
    return Case("config", tuple(words), files)


def _bound(rng: random.Random) -> Case:
    """A bad file of evidence."""
    one_run = rng.random() < 0.3
    name, content = fuzz_files.evidence(rng, one_run=one_run)
    words = ["bound", "--delta", "1e-5", "--scores", name]
    if one_run:
        words.append("--one-run")
    if rng.random() < 0.5:
        methods = ("one-run", "one-run-fdp") if one_run else ("gdp", "clopper-pearson", "dpsgd")
        words += ["--method", rng.choice(methods)]
        if words[-1] == "dpsgd":
            words += ["--sample-rate", "0.1", "--steps", "10"]
    if not one_run and rng.random() < 0.4:
        rules = ("sup", "holdout", "bonferroni", "dkw", "optimistic", "given:0.5")
        words += ["--threshold", rng.choice(rules)]
    return Case("evidence", tuple(words), {name: content})


def _stored(rng: random.Random) -> Case:
    """A bad store with the commands that read one."""
    name = rng.choice(("store.db",) * 8 + ("a" * 300, "folder", "missing/store.db"))
    files = {"store.db": fuzz_files.store_bytes(rng), "config.toml": fuzz_files.config_text(random.Random(1))}
    run = rng.choice((fuzz_files.RUN, fuzz_files.RUN, "c0", "", "zz", "%", "ε", "a" * 300, "\udcff"))
    words = rng.choice(
        (
            ["runs", "list"],
            ["runs", "show", run],
            ["runs", "resume", run, "--workers", "1"],
            ["runs", "remove", run, "--yes"],
            ["report", run, "-o", "out.html"],
            ["audit", "config.toml", "--workers", "1"],
        )
    )
    json = ["--json"] if rng.random() < 0.3 and words[0] == "runs" and words[1] != "remove" else []
    return Case("store", (*words, "--store", name, *json), files)


# ---- calls -------------------------------------------------------------------------------------------------------

_MECHANISM = DpSgd(sample_rate=0.1, noise_multiplier=1.0, steps=10)
_COUNTS = Counts(false_positives=2, negatives=100, false_negatives=60, positives=100)
_SCORED = Scores(np.arange(30.0) % 7, np.arange(30.0) % 11)
_CANARIES = OneRunScores(np.arange(40) % 2, np.arange(40) % 7 + np.arange(40) % 2)
_ROWS = np.arange(60.0).reshape(12, 5) % 7

_GIVEN: dict[str, Any] = {
    "mechanism": _MECHANISM,
    "evidence": _COUNTS,
    "counts": _COUNTS,
    "scores": _SCORED,
    "delta": 1e-5,
    "epsilon": 1.0,
    "rdp_epsilon": 1.0,
    "claim": 1.0,
    "order": 2.0,
    "mu": 1.0,
    "confidence": 0.95,
    "credibility": 0.95,
    "advantage": 0.3,
    "belief": 0.9,
    "regularizer": 0.5,
    "sample_rate": 0.1,
    "noise_multiplier": 1.0,
    "steps": 10,
    "points": 16,
    "relation": "add_remove",
    "clip": 1.0,
    "gradient": [1.0, 2.0],
    "distances": [1.0, 2.0],
    "world0": [0.1, 0.2],
    "world1": [0.3, 0.4],
    "rows": _ROWS,
    "held_out": _ROWS[:4],
    "measure": "euclidean",
    "promised": True,
    "negatives": 100,
    "positives": 100,
    "false_positives": 2,
    "false_negatives": 60,
    "canaries": 100,
    "guesses": 50,
    "correct": 40,
    "count": 3,
    "trials": 10,
    "guess_in": 5,
    "guess_out": 5,
    "dataset": _ROWS,
    "canary": _ROWS[0],
    "included": [0, 1],
    "score": [0.5, 0.7],
    "tree": {"audit": {"trials": 16}},
    "overrides": ["audit.trials=16"],
    "value": 0.5,
    "fraction": 0.5,
}
_CLAIM = MechanismClaim(mechanism=_MECHANISM, delta=1e-5)
_CURVE = bounds.less_noise(_CLAIM, share=0.5)
_OF_CLAIMS = tuple(
    getattr(bounds, name)
    for name in ("claim_test", "check_claim", "claim_curve", "less_noise", "power", "trials_needed")
)
_OTHER = {
    bounds.one_run: {"evidence": _CANARIES},
    bounds.one_run_fdp: {"evidence": _CANARIES},
    bounds.count_guesses: {"scores": _CANARIES},
    OneRunScores: {"score": [0.5, 0.7]},
    bounds.dpsgd: {"evidence": _SCORED},
    bounds.anytime: {"counts": _COUNTS},
    **{one: {"claim": _CLAIM, "share": 0.5, "alternative": _CURVE} for one in _OF_CLAIMS},
    records.Relation.parse: {"value": "replace"},
    records.Sampling.parse: {"value": "full"},
    estimates.Share.of: {"trials": 10},
}

PUBLIC: tuple[Callable[..., Any], ...] = (
    *(getattr(bounds, name) for name in ("anytime", "bayesian", "ceiling", "clopper_pearson", "count_guesses")),
    *(getattr(bounds, name) for name in ("dpsgd", "gdp", "lower_bound", "one_run", "one_run_fdp", "plan")),
    *(bounds.Bonferroni, bounds.Given, bounds.Guesses, bounds.HoldOut, bounds.Sup, bounds.AnytimeAudit),
    *_OF_CLAIMS,
    *(
        standard.epsilon_at_least,
        standard.epsilon,
        standard.delta,
        standard.profile,
        standard.gdp_mu,
        standard.gdp_clt,
        standard.gdp_clt_delta,
    ),
    *(standard.shuffle_epsilon, standard.shuffle_delta, full_batch.mu, full_batch.epsilon, full_batch.delta),
    *(last_iterate.epsilon, last_iterate.delta, last_iterate.worst, last_iterate.worst_delta, last_iterate.profile),
    *(counterexamples.regularized, counterexamples.zeroing, encoding.one_bit, encoding.linear),
    *(calibrate.noise_multiplier, calibrate.for_advantage),
    *(advantage.classical_noise, advantage.from_epsilon, advantage.to_epsilon, advantage.mu_for, advantage.from_rdp),
    *(advantage.generic, advantage.of_mechanism, belief.from_epsilon, belief.to_epsilon, belief.exceedance),
    *(choose.from_belief, choose.from_advantage, estimates.rdp_epsilon, estimates.rdp_noise, estimates.wins),
    *(estimates.exceeded, estimates.from_sensitivities, estimates.from_belief, estimates.from_advantage),
    *(estimates.loss_wins, estimates.summary, sensitivity.global_sensitivity, sensitivity.local_sensitivity),
    *(sensitivity.suggest, sensitivity.neighbour, sensitivity.replacement, sensitivity.neighbours),
    *(coalmine.neighbours, coalmine.Worlds, config.load, config.parse, config.Execution),
    *(records.DpSgd, records.Counts, records.Scores, records.OneRunScores, records.EpsilonClaim),
    *(records.MechanismClaim, records.Relation.parse, records.Sampling.parse),
)
"""The functions and records that a user calls without training anything."""


def sane_arguments(function: Callable[..., Any]) -> dict[str, Any]:
    """Arguments that the function takes: those without a default, or an important one."""
    known = {**_GIVEN, **_OTHER.get(function, {})}
    found = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        if parameter.default is parameter.empty and name in known:
            found[name] = known[name]
        elif parameter.default is parameter.empty:
            found[name] = 1
    return found


def apply(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Call it, with what may come by position first."""
    leading = [
        arguments.pop(name)
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is parameter.POSITIONAL_ONLY and name in arguments
    ]
    return function(*leading, **arguments)


def _call(rng: random.Random) -> Case:
    """A public function with arguments of which some are wrong."""
    function = rng.choice(PUBLIC)
    arguments = sane_arguments(function)
    names = [
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    ]
    state = rng.getrandbits(64)
    chosen = [rng.choice(names) for _ in range(rng.choice((1, 1, 1, 2, 3)))] if names else []
    where = f"{function.__module__}.{function.__qualname__}"

    def call() -> Any:
        again = random.Random(state)
        given = dict(arguments)
        for name in chosen:
            given[name] = fuzz_values.thing(again)
        return apply(function, given)

    def shown() -> str:
        again = random.Random(state)
        parts = []
        for name in chosen:
            try:
                text = repr(fuzz_values.thing(again))
            except Exception as error:  # noqa: BLE001 - what cannot be made or shown is named by its error
                text = f"<{type(error).__name__}>"
            parts.append(f"{name}={text if len(text) < 80 else text[:77] + '...'}")
        return f"{where}({', '.join(parts)})"

    return Case("call", call=call, words=shown())


def write_files(one: Case, folder: Path) -> None:
    """Put the files of the case, and those that every case finds, into the folder."""
    for name, content in {**fuzz_values.STANDING, **one.files}.items():
        if content is None:
            (folder / name).mkdir()
        else:
            (folder / name).write_bytes(content)
