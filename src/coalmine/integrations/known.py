"""What is known of a user's functions before the game, held against what they are where they are played."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from coalmine.errors import GameStoppedError, InvalidInputError
from coalmine.integrations import identity, reads

_checked: set[str] = set()
"""In a worker: the audits whose functions have been compared."""
_left: dict[str, dict[tuple[str, str], str]] = {}
"""The values that an audit's functions reach, as the first trainings in this process left them."""
_left_in_caches: dict[str, tuple[dict[tuple[str, str], str], list[Any]]] = {}
"""What the cached functions of an audit kept when it was last looked at, and what it is kept under: held, so that no
other object takes the number of one."""
_left_in_environment: dict[str, dict[str, str | None]] = {}
"""Environment variables that an audit's functions read, as the first training in this process left them."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Known:
    """The identity of every function of an audit, and the files that it covers.

    A worker imports the user's modules by itself, so it may find other text or other values than the process that named
    the run. ``main`` is what ``__main__`` is called there, ``main_file`` its file; ``began`` is when this was found.
    """

    functions: tuple[tuple[str, Callable[..., Any], identity.Followed], ...]
    files: tuple[Path, ...]
    depends_on: Mapping[str, Any]
    main: str
    main_file: Path | None
    process: int
    began: int = dataclasses.field(default_factory=time.time_ns)

    @classmethod
    def of(cls, functions: Sequence[tuple[str, Callable[..., Any]]], *, depends_on: Mapping[str, Any]) -> Known:
        """What this process knows."""
        followed = [(name, one, identity.followed(name, one, depends_on=depends_on)) for name, one in functions]
        files = {file for _, _, found in followed for file in found.files}
        files |= {value.resolve() for value in depends_on.values() if isinstance(value, Path)}
        return cls(
            functions=tuple(followed),
            files=tuple(sorted(files)),
            depends_on=depends_on,
            main=identity.name_of_main(),
            main_file=identity.file_of_main(),
            process=os.getpid(),
        )

    def identity_of(self, function: Callable[..., Any]) -> dict[str, Any]:
        """What a function of the audit is."""
        return next(found.identity for _, one, found in self.functions if one is function)

    def check_once(self) -> None:
        """In another process, before the first training changes anything: stop where a function is not the same."""
        if os.getpid() == self.process or self._token in _checked:
            return
        _checked.add(self._token)
        identity.main_name, identity.main_file = self.main, self.main_file
        for name, function, expected in self.functions:
            try:
                found = identity.followed(name, function, depends_on=self.depends_on)
            except InvalidInputError as error:
                raise GameStoppedError(f"in a worker process {error}") from None
            other = _differences(expected, found)
            if other:
                raise GameStoppedError(
                    f"{name} = {identity.label(function)} is not the same in a worker process on {platform.node()} "
                    f"({', '.join(other[:3])}): something was changed after it was imported, in a file or in the "
                    "running program, or this machine has other code: bind it with functools.partial, play in this "
                    "process (Execution(engine='inline')), or install the same code on every machine"
                )

    def check_settled(self) -> None:
        """Stop where trainings go on changing what they read: what one leaves there, the next begins with.

        What the first trainings change once and for all (a file that is loaded when it is first needed) is no matter,
        and neither is what a cached function comes to keep or keeps no longer: only what it gives again must stay.
        """
        now: dict[tuple[str, str], str] = {}
        kept: dict[tuple[str, str], str] = {}
        held: list[Any] = []
        for name, function, _ in self.functions:
            try:
                found = identity.followed(name, function, depends_on=self.depends_on, caches=True)
            except InvalidInputError:  # something without a content has come in: it cannot be compared
                return
            now |= {(name, place): value for place, value in found.values.items()}
            kept |= {(name, place): value for place, value in found.cached.items()}
            held += found.held
        before = _left.setdefault(self._token, now)
        earlier, _ = _left_in_caches.get(self._token, ({}, []))
        _left_in_caches[self._token] = kept, held
        changed = sorted(one for one in now.keys() | before.keys() if now.get(one) != before.get(one))
        changed += sorted(one for one in kept.keys() & earlier.keys() if kept[one] != earlier[one])
        if changed:
            place = changed[0][1].partition(" [")[0]
            raise GameStoppedError(
                f"trainings leave something behind for the next one ({place}), so trials are not independent: make it "
                f"anew in each training, or, if none reads it, name it: depends_on={{{place!r}: 'unused'}}"
            )

    @property
    def _token(self) -> str:
        return f"{self.process} {[(found.identity, found.values) for _, _, found in self.functions]}"

    @contextlib.contextmanager
    def reading(self, name: str, *, made: Collection[str] = ()) -> Iterator[reads.Reads]:
        """Stop the game when something inside reads a file that is not covered, or what an earlier training left.

        ``made`` are files that were made for it before. Environment variables are put back afterwards.
        """
        named = [value.resolve() for value in self.depends_on.values() if isinstance(value, Path)]
        with self._environment(), reads.watched(self.files, named=named, since=self.began, made=made) as found:
            yield found
        if found.left:
            raise GameStoppedError(
                f"trainings leave something behind for the next one ({name} reads {found.left[0].name!r}, which was "
                "written since the audit began), so trials are not independent: make it anew in each training, or, if "
                "it is the same for all of them, make it before the audit and name it in depends_on"
            )
        if found.unknown:
            path = found.unknown[0]
            raise GameStoppedError(
                f"{name} reads {path.name!r}, which may change while its trials are reused: name it, "
                f"depends_on={{{path.name!r}: Path({str(path)!r})}}"
            )

    @contextlib.contextmanager
    def _environment(self) -> Iterator[None]:
        """Put environment variables back; stop where trainings leave ever other values in one that they read."""
        before = dict(os.environ)
        try:
            yield
        finally:
            after = dict(os.environ)
            changed = sorted(one for one in before.keys() | after.keys() if before.get(one) != after.get(one))
            for one in changed:  # only those: others may be changed by another thread
                if one in before:
                    os.environ[one] = before[one]
                else:
                    del os.environ[one]
        read = {one for _, _, found in self.functions for one in found.environment}
        left = _left_in_environment.setdefault(self._token, {})
        for one in changed:
            value = after.get(one)
            if one in read and one not in self.depends_on and left.setdefault(one, value) != value:
                raise GameStoppedError(
                    f"trainings leave something behind for the next one (the environment variable {one}), so trials "
                    f"are not independent: set it anew in each training, or, if none reads what it was, name it: "
                    f"depends_on={{{one!r}: 'unused'}}"
                )


def _differences(expected: identity.Followed, found: identity.Followed) -> list[str]:
    """What is not the same: places of values, or parts of the identity. A worker has no text of what was typed in."""
    other = _other_keys(expected.values, found.values)
    for part, mine in expected.identity.items():
        theirs = found.identity[part]
        if part in ("typed in", "values") or mine == theirs:
            continue
        if isinstance(mine, Mapping) and isinstance(theirs, Mapping):
            other += [f"{part}: {key}" for key in _other_keys(mine, theirs)]
        else:
            other.append(part)
    return other


def _other_keys(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Where two mappings do not hold the same."""
    return sorted(key for key in one.keys() | other.keys() if one.get(key) != other.get(key))
