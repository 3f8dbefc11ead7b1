"""``audit_function``: the privacy game against a training that the user wrote.

``train(dataset, seed)`` gives a model (or whatever is released), ``score(model)`` one number that is larger when the
model looks like world 1. All else is as in :func:`coalmine.auditing.run.audit`: blocks, store, bounds, verdict.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

from coalmine import _validate, bounds
from coalmine.auditing import run as auditing
from coalmine.auditing.config import AuditSection, Execution, FunctionConfig
from coalmine.auditing.results import AuditResult
from coalmine.errors import InvalidInputError
from coalmine.game import BLOCK_SIZE, blocks_for
from coalmine.game.engines import local
from coalmine.integrations import identity
from coalmine.integrations.stored import NAME, stored_result
from coalmine.integrations.task import FunctionTask, Score, Train, build, check_signatures, contents
from coalmine.integrations.worlds import GivenWorlds, Worlds
from coalmine.records import DpSgd, Scores
from coalmine.store import Store

ALGORITHMS = {"own training": 2, "blocks": BLOCK_SIZE}
"""Part of every fingerprint. Raise a number when a change alters what a score is, so that old trials are not reused."""


def audit_function(
    train: Train,
    score: Score,
    *,
    worlds: GivenWorlds,
    claim_epsilon: float | None = None,
    claim_dpsgd: DpSgd | None = None,
    delta: float = 1e-5,
    confidence: float = 0.99,
    trials: int = 1000,
    seed: int = 0,
    workers: int = 1,
    timeout: float | None = None,
    store: Store | str | Path = "coalmine.db",
    watcher: auditing.Watcher | None = None,
) -> AuditResult:
    """Play the privacy game against ``train`` and test what is claimed for it.

    ``train(dataset, seed)`` is called once for each trial, on the data set of that trial's world, with a seed of its
    own; ``score(model)`` or ``score(model, canary)`` gives one number, larger for world 1. ``worlds`` is a pair of data
    sets, :class:`Worlds` (see :func:`neighbours`), or a function without arguments that builds either.

    The claim is an ε at ``delta``, or a DP-SGD whose whole trade-off curve is claimed: the second says more, so fewer
    trials refute it. It is meant for worlds under the relation of ``worlds``. ``workers`` processes train at once
    (0: one for each core); ``timeout`` is the most seconds that one training may take. Trials are kept in ``store``
    and reused as long as nothing that shapes them has changed.
    """
    given = _claim(claim_epsilon, claim_dpsgd)
    section = _section(delta=delta, confidence=confidence, trials=trials, seed=seed, claim=claim_epsilon)
    # Found out now, not after the training: a confidence that the bound cannot reach.
    bounds.lower_bound(Scores([0.0, 0.0], [1.0, 1.0]), delta=delta, confidence=confidence)
    limit = None if timeout is None else _validate.positive("timeout", timeout)
    count = Execution(workers=workers).worker_count
    for name, function in (("train", train), ("score", score)):
        identity.check_function(name, function)
    check_signatures(train, score)
    separate = count > 1 or limit is not None
    if separate:
        _check_importable(train=train, score=score, worlds=worlds)
    if not isinstance(store, Store):
        with Store.open(store) as opened:
            return audit_function(
                train,
                score,
                worlds=worlds,
                claim_epsilon=claim_epsilon,
                claim_dpsgd=claim_dpsgd,
                delta=delta,
                confidence=confidence,
                trials=trials,
                seed=seed,
                workers=workers,
                timeout=timeout,
                store=opened,
                watcher=watcher,
            )
    built = build(worlds)
    if isinstance(given, DpSgd) and given.relation is not built.relation:
        raise InvalidInputError(
            f"claim_dpsgd is for neighbours by {given.relation.value!r}, the worlds differ by "
            f"{built.relation.value!r}: expected the same relation"
        )
    settings = FunctionConfig(
        train=identity.label(train),
        score=identity.label(score),
        worlds=identity.label(worlds) if callable(worlds) else "",
        relation=built.relation.value,
        copies=built.copies,
        mechanism=given if isinstance(given, DpSgd) else None,
        audit=section,
    )
    who = _identity(train, score, worlds, built, settings)
    fingerprint = auditing.fingerprint(who)
    description = {"identity": who, "versions": auditing.versions(), "config": settings.model_dump(mode="json")}
    store.register(fingerprint, {**description, "trials": section.trials})
    with tempfile.TemporaryDirectory(prefix="coalmine-") as notes:
        task = FunctionTask(
            fingerprint=fingerprint,
            train=train,
            score=score,
            worlds=worlds if callable(worlds) else built,
            contents=contents(built),
            timeout=limit,
            notes=notes if limit is not None else None,
        )
        if separate:
            _check_portable(task)
        watching = watcher or auditing.Nobody()
        done = store.scores(fingerprint, below=section.trials)
        watching.begin(f"{NAME} ({settings.train})", trials=section.trials, copies=built.copies, done=done)
        missing = blocks_for(section.trials, done=store.done(fingerprint))
        local.run(task, blocks=missing, store=store, workers=count, on_block=watching.block)
        watching.end()
    return stored_result(store, fingerprint)


def _claim(epsilon: float | None, mechanism: DpSgd | None) -> float | DpSgd:
    """What is claimed: exactly one of the two ways."""
    if (epsilon is None) == (mechanism is None):
        raise InvalidInputError(
            "claim_epsilon is missing: expected the ε that is claimed, or claim_dpsgd"
            if epsilon is None
            else "claim_epsilon is not allowed beside claim_dpsgd: expected one of them"
        )
    if mechanism is not None:
        _validate.instance("claim_dpsgd", mechanism, DpSgd)
        return mechanism
    return _validate.positive("claim_epsilon", epsilon)


def _section(*, delta: float, confidence: float, trials: int, seed: int, claim: float | None) -> AuditSection:
    """The question, checked."""
    return AuditSection(
        delta=_validate.open_unit("delta", delta),
        confidence=_validate.open_unit("confidence", confidence),
        trials=_validate.integer("trials", trials, at_least=4),
        seed=_validate.integer("seed", seed, at_least=0),
        claim_epsilon=claim,
    )


def _identity(
    train: Train, score: Score, worlds: GivenWorlds, built: Worlds, settings: FunctionConfig
) -> dict[str, Any]:
    """All that shapes the distribution of a score, and nothing else."""
    content = contents(built)
    if content is None and not callable(worlds):
        raise InvalidInputError(
            "worlds holds data without a content hash, so its trials could not be told from those of other data: give "
            "arrays, tensors or a TensorDataset, or a function that builds the worlds"
        )
    return {
        "adversary": {"name": NAME, "train": settings.train, "score": settings.score},
        "data": {
            "name": settings.data.name,
            "content": list(content) if content else None,
            "relation": settings.relation,
            "copies": settings.copies,
        },
        "train": identity.function_identity("train", train),
        "score": identity.function_identity("score", score),
        "worlds": identity.function_identity("worlds", worlds) if callable(worlds) else None,
        "seed": settings.audit.seed,
        "algorithms": ALGORITHMS,
    }


def _check_importable(**functions: Any) -> None:
    """Other processes find a function by its module and name alone; say so where they could not."""
    for name, given in functions.items():
        function = given
        while hasattr(function, "func"):
            function = function.func
        if not callable(function):
            continue
        module, path = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
        if module == "__mp_main__":
            raise InvalidInputError(
                "audit_function was called while a worker process imported the script: put the call under "
                "if __name__ == '__main__':"
            )
        found: Any = sys.modules.get(module)
        for part in path.split("."):
            found = getattr(found, part, None)
        if module == "__main__" and not hasattr(sys.modules["__main__"], "__file__"):
            problem = "was typed in"
        elif found is not function:
            problem = "is a lambda or a function inside a function" if "<" in path else "is not found under its name"
        else:
            continue
        raise InvalidInputError(
            f"{name} = {module}:{path} {problem}, so worker processes cannot import it: put it at the top of a module, "
            "or use workers = 1 without a timeout"
        )


def _check_portable(task: FunctionTask) -> None:
    """Whether the data and the bound arguments survive the way to another process."""
    try:
        ForkingPickler.dumps(task)
    except Exception as error:  # noqa: BLE001  a user's object may raise anything
        raise InvalidInputError(
            f"worlds cannot be sent to worker processes ({type(error).__name__}: {error}): give a function that builds "
            "them, or use workers = 1 without a timeout"
        ) from None


def parse_dpsgd(name: str, text: str) -> DpSgd:
    """The claim of the command line: sampling rate, noise multiplier and steps.

    >>> parse_dpsgd("claim_dpsgd", "0.5, 1, 4").steps
    4
    """
    try:
        rate, noise, steps = text.split(",")
        return DpSgd(sample_rate=float(rate), noise_multiplier=float(noise), steps=int(steps))
    except InvalidInputError:
        raise
    except ValueError:
        raise _validate.reject(name, text, "sampling rate, noise multiplier and steps, such as 0.01,1.1,1000") from None


def load_function(name: str, text: str) -> Callable[..., Any]:
    """The function that ``module:function`` on the command line names; modules are looked for in this folder too."""
    found = _load(name, text)
    identity.check_function(name, found)
    return found  # type: ignore[no-any-return]


def load_worlds(text: str) -> GivenWorlds:
    """The worlds that ``module:name`` names: a function that builds them, or the pair or :class:`Worlds` itself."""
    found = _load("worlds", text)
    if callable(found):
        identity.check_function("worlds", found)
    return found  # type: ignore[no-any-return]


def _load(name: str, text: str) -> Any:
    """What ``module:name`` stands for."""
    module, colon, path = text.partition(":")
    if not colon or not module or not path:
        raise _validate.reject(name, text, "module:function, such as mytraining:train")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:  # noqa: BLE001  a user's module may raise anything
        raise InvalidInputError(
            f"{name} = {text!r} cannot be imported ({type(error).__name__}: {error}); modules are looked for in this "
            "folder and among the installed packages"
        ) from None
    for part in path.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise InvalidInputError(f"{name} = {text!r} is not there: module {module} has no {path}")
    return found
