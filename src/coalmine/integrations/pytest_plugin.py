"""The pytest plugin: privacy checks as tests. Loaded by pytest in every run, so it loads nothing else until it is used.

::

    @pytest.mark.coalmine(claim=DpSgd(sample_rate=0.01, noise_multiplier=1.1, steps=1000), time_limit=60)
    def test_our_sampler_is_what_the_accountant_was_told(coalmine):
        coalmine.probe_sampler(make_loader())

A check that refutes fails the test with its words, and so does one that is inconclusive, unless the marker or the call
says ``allow_inconclusive=True``: a check that could not have found anything protects nobody. So does a test that has
the marker or the fixture and runs no check at all. The words are kept in the JUnit file as properties of the test.
"""

from __future__ import annotations

import contextlib
import numbers
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_MARKER = (
    "coalmine(claim=None, time_limit=None, allow_inconclusive=False): what the checks of the `coalmine` fixture claim "
    "(an epsilon, an EpsilonClaim, a DpSgd, also as text such as '0.01,1.1,1000', or a MechanismClaim), how many "
    "seconds each may take, and whether an inconclusive result passes."
)
_OPTIONS = ("claim", "time_limit", "allow_inconclusive")
_SECONDS = (1e-3, 1e7)
"""The shortest and the longest time limit."""


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line("markers", _MARKER)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fail a test that asks for checks and ran none."""
    outcome: Any = yield
    asked = any(one.name == "coalmine" for one in item.own_markers) or "coalmine" in getattr(item, "fixturenames", ())
    ran = any(name.startswith("coalmine.") for name, _ in item.user_properties)
    if asked and not ran and outcome.excinfo is None:
        words = "this test ran none of the checks of the fixture coalmine (coalmine.probe, coalmine.audit, …)"
        outcome.force_exception(pytest.fail.Exception(words, pytrace=False))


class Checks:
    """What the ``coalmine`` fixture offers: each check runs, records its words, and fails the test where it must.

    Each method takes the arguments of the function of the same name, gives back its result, and fills in what the
    marker's claim says where an argument is not given.
    """

    def __init__(self, *, marker: dict[str, Any], properties: list[tuple[str, object]], folder: Path) -> None:
        self._marker, self._properties, self._folder = marker, properties, folder

    def probe(self, step: Any, **options: Any) -> Any:
        """:func:`coalmine.probe`: one private step, recorded and replayed. The claim gives the noise multiplier."""
        mechanism = self._claimed("probe", "noise_multiplier", options, "one step has a noise multiplier and no ε")
        defaults = {} if mechanism is None else {"noise_multiplier": mechanism.noise_multiplier}
        return self._check("probe", step, options, defaults)

    def probe_sampler(self, loader: Any, **options: Any) -> Any:
        """:func:`coalmine.probe_sampler`: the rows that a loader draws. The claim gives the sample rate."""
        mechanism = self._claimed("probe_sampler", "sample_rate", options, "a sampler has a sampling rate and no ε")
        defaults = {} if mechanism is None else {"sample_rate": mechanism.sample_rate}
        return self._check("probe_sampler", loader, options, defaults)

    def check_accountant(self, accountant: Any, **options: Any) -> Any:
        """:func:`coalmine.check_accountant`: ours beside theirs. The claim gives what ran, or the target epsilon."""
        claim = self._marker.get("claim")
        mechanism = _mechanism(claim)
        defaults: dict[str, Any] = {"delta": getattr(claim, "delta", 1e-5)}
        if mechanism is not None:
            defaults["ran"] = mechanism
        elif claim is not None:
            defaults["target_epsilon"] = float(getattr(claim, "epsilon", claim))
        return self._check("check_accountant", accountant, options, defaults)

    def audit(self, train: Any, score: Any, **options: Any) -> Any:
        """:func:`coalmine.audit_function`: many whole trainings. The claim is what they are held against."""
        claim = self._marker.get("claim")
        defaults: dict[str, Any] = {"store": self._folder / "coalmine.db"}
        if claim is not None and not options.keys() & {"claim", "claim_epsilon", "claim_dpsgd"}:
            kind = "claim" if hasattr(claim, "delta") else "claim_dpsgd" if _mechanism(claim) else "claim_epsilon"
            defaults[kind] = claim
        return self._check("audit", train, {"score": score, **options}, defaults, function="audit_function")

    def _claimed(self, check: str, part: str, options: dict[str, Any], why: str) -> Any:
        """The claimed mechanism, of which a check tests one part; fails the test where the claim has no such part."""
        claim = self._marker.get("claim")
        mechanism = _mechanism(claim)
        if claim is not None and mechanism is None and part not in options:
            from coalmine._validate import shown

            pytest.fail(
                f"coalmine.{check} cannot test claim = {shown(claim)}: {why}. Claim the mechanism, "
                f"DpSgd(sample_rate=…, noise_multiplier=…, steps=…), or hand {part} to the check; an ε is tested by "
                "coalmine.audit and by coalmine.check_accountant",
                pytrace=False,
            )
        return mechanism

    def _check(
        self, name: str, subject: Any, options: dict[str, Any], defaults: dict[str, Any], *, function: str = ""
    ) -> Any:
        """Run a check under the time limit, record what it says, and fail the test where it must."""
        import coalmine
        from coalmine import errors

        try:
            allowed = _yes_or_no(options.pop("allow_inconclusive", self._marker.get("allow_inconclusive", False)))
        except errors.CoalmineError as error:
            raise _failure(f"coalmine.{name}: {error}") from None
        limit = self._marker.get("time_limit")
        if "score" in options:
            options = dict(options)
            arguments: tuple[Any, ...] = (subject, options.pop("score"))
        else:
            arguments = (subject,)
        try:
            with _limited(limit, name):
                result = getattr(coalmine, function or name)(*arguments, **{**defaults, **options})
        except errors.CoalmineError as error:
            raise _failure(f"coalmine.{name}: {error}") from None
        verdict, words = str(result.verdict), result.in_words()
        self._properties += [(f"coalmine.{name}.verdict", verdict), (f"coalmine.{name}", words)]
        if verdict == "refuted":
            pytest.fail(words, pytrace=False)
        if verdict == "inconclusive" and not allowed:
            pytest.fail(
                f"{words}\nAn inconclusive check is a failure; allow it with allow_inconclusive=True.", pytrace=False
            )
        return result


@pytest.fixture
def coalmine(request: pytest.FixtureRequest, tmp_path: Path) -> Checks:
    """Privacy checks that fail the test by themselves; see the marker ``coalmine`` for claim and time limit."""
    found = request.node.get_closest_marker("coalmine")
    marker = {} if found is None else _checked(found)
    # Not by record_property: it warns under pytest's default kind of JUnit file, and a warning may be an error.
    return Checks(marker=marker, properties=request.node.user_properties, folder=tmp_path)


def _checked(marker: pytest.Mark) -> dict[str, Any]:
    """The options of a marker, each of a kind that is allowed; fails the test where one is not."""
    from coalmine import errors

    unknown = [*map(repr, marker.args), *sorted(set(marker.kwargs) - set(_OPTIONS))]
    if unknown:
        by_name = ", by name" if marker.args else ""
        pytest.fail(
            f"the marker coalmine does not know {', '.join(unknown)}: expected {', '.join(_OPTIONS)}{by_name}",
            pytrace=False,
        )
    options = dict(marker.kwargs)
    try:
        options["claim"] = _claim(options.get("claim"))
        options["time_limit"] = _seconds(options.get("time_limit"))
        options["allow_inconclusive"] = _yes_or_no(options.get("allow_inconclusive", False))
    except errors.CoalmineError as error:
        raise _failure(f"the marker coalmine: {error}") from None
    return options


def _failure(words: str) -> BaseException:
    """What fails a test with these words alone (returned, so that the caller can raise it from None)."""
    return pytest.fail.Exception(words, pytrace=False)


def _claim(value: Any) -> Any:
    """An ε, a claim or a mechanism; a text is read as on the command line."""
    from coalmine import _validate
    from coalmine.records import DpSgd, EpsilonClaim, MechanismClaim

    if value is None or isinstance(value, (DpSgd, EpsilonClaim, MechanismClaim)):
        return value
    if isinstance(value, str):
        from coalmine.integrations.functions import parse_dpsgd

        return parse_dpsgd("claim", value)
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise _validate.reject(
            "claim",
            value,
            "an ε, an EpsilonClaim, a DpSgd, a MechanismClaim, or a text with sampling rate, noise multiplier and "
            "steps, such as '0.01,1.1,1000'",
        )
    return _validate.positive("claim", value)


def _seconds(value: Any) -> float | None:
    from coalmine import _validate

    if value is None:
        return None
    seconds = _validate.positive("time_limit", value)
    if not _SECONDS[0] <= seconds <= _SECONDS[1]:
        raise _validate.reject("time_limit", value, "a number of seconds from {:g} to {:g}".format(*_SECONDS))
    return seconds


def _yes_or_no(value: Any) -> bool:
    from coalmine import _validate

    if not isinstance(value, bool):
        raise _validate.reject("allow_inconclusive", value, "True or False")
    return value


def _mechanism(claim: Any) -> Any:
    """The DP-SGD that is claimed, if it is one."""
    if hasattr(claim, "noise_multiplier"):
        return claim
    return getattr(claim, "mechanism", None)


@contextlib.contextmanager
def _limited(seconds: float | None, name: str) -> Iterator[None]:
    """Stop a check that takes longer; where no alarm can be set (another thread, Windows), fail it afterwards."""
    if seconds is None:
        yield
        return
    words = f"{name} took longer than time_limit = {seconds:g} seconds"
    started = time.monotonic()
    alarm = hasattr(signal, "SIGALRM") and threading.current_thread() is threading.main_thread()

    def stop(*_: Any) -> None:
        pytest.fail(words, pytrace=False)

    before = signal.signal(signal.SIGALRM, stop) if alarm else None
    if alarm:
        signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        if alarm:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, before)
    if time.monotonic() - started > seconds:
        pytest.fail(words, pytrace=False)
