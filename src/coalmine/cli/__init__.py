"""The command line: one file a command, no arithmetic.

Exit codes: 0 done, or the claim is consistent with the evidence; 1 the claim is refuted; 2 wrong input; 3 inconclusive;
4 an error of Coalmine itself. As in a shell, 130 is Ctrl-C, 143 a request to end (SIGTERM) and 141 a reader that went
away.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import itertools
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import typer

import coalmine
from coalmine.cli._output import any_encoding, as_option_names, printable, working
from coalmine.errors import CoalmineError


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"coalmine {coalmine.__version__}")
        raise typer.Exit


def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Measure how much a differentially private training algorithm really leaks."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


_COMMANDS = {
    "audit": ("audit.audit", "Play the privacy game against a training, and judge it."),
    "adversaries": ("adversaries.adversaries", "List the adversaries and what they may see and do."),
    "report": ("report.report", "Write the report of a stored audit as one HTML page."),
    "bundle": ("bundle.bundle", "Write an audit as one file that others can check."),
    "verify": ("verify.verify", "Check such a file: bounds again, a sample trained again."),
    "runs": ("runs.runs", ""),
    "study": ("study.study", ""),
    "view": ("view.view", "Look at a store in a browser."),
    "account": ("account.account", "What theory promises for DP-SGD, by every analysis."),
    "bound": ("bound.bound", "The ε that counts, scores or one run prove."),
    "calibrate": ("calibrate.calibrate", "The smallest noise that keeps an ε."),
    "choose": ("choose.choose", "From a tolerated belief to ε and to the noise."),
    "counterexample": ("counterexample.counterexample", "Where the last-iterate heuristic fails."),
    "plan": ("plan.plan", "How many trials or canaries refute a claim."),
    "probe": ("probe.probe", "Take one private step apart and name its faults."),
    "one-run": ("one_run.one_run", ""),
    "data": ("data.app", ""),
}
"""Where each command is, and what 'coalmine --help' says of it, whole at 80 columns; if empty, a group says it."""


def _made(names: Iterable[str]) -> typer.Typer:
    """The command line with these commands; what the others need is not loaded."""
    made = typer.Typer(
        name="coalmine",
        help="Measure how much a differentially private training algorithm really leaks.",
        invoke_without_command=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        epilog=(
            "Exit codes: 0 done, or consistent with the claim; 1 the claim is refuted; 2 wrong input; 3 inconclusive; "
            "4 an error of Coalmine itself (set COALMINE_DEBUG=1 to see where)."
        ),
    )
    made.callback()(_root)
    for name in names:
        place, says = _COMMANDS[name]
        module, _, attribute = place.partition(".")
        found = getattr(importlib.import_module(f"coalmine.cli.{module}"), attribute)
        if isinstance(found, typer.Typer):
            options: dict[str, Any] = {"short_help": says} if says else {}
            made.add_typer(found, name=name, **options)
        else:
            made.command(name, short_help=says)(found)
    return made


def __getattr__(name: str) -> Any:
    """``app`` is the whole command line."""
    if name == "app":
        return _made(_COMMANDS)
    raise AttributeError(f"module 'coalmine.cli' has no attribute {name!r}")


# Typer may bring its own copy of click, so its exception types are taken from Typer's public names.
_CommandLineError: Any = typer.BadParameter.__bases__[0].__bases__[0]


_WRONG_INPUT, _OUR_ERROR, _STOPPED, _NO_READER, _ENDED = 2, 4, 130, 141, 143
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
_NO_MEMORY = re.compile("can't allocate memory|out of memory", re.IGNORECASE)
"""How torch says that memory is short: with a RuntimeError."""


def main(arguments: list[str] | None = None) -> int:
    """Run one command; return its exit code. Whatever goes wrong ends in one line on stderr, never in a traceback.

    With the environment variable COALMINE_DEBUG set, the traceback of an error of ours comes first.
    """
    given = sys.argv[1:] if arguments is None else arguments
    known = given and given[0] in _COMMANDS and _COMPLETION not in os.environ
    command = typer.main.get_command(_made(given[:1] if known else _COMMANDS))
    with any_encoding(), _end_like_stop() as ended, working("working", shown=_may_turn(command, given)):
        try:
            result = command.main(args=given, prog_name="coalmine", standalone_mode=False)
            sys.stdout.flush()
        except KeyboardInterrupt:
            result = _STOPPED
        except BaseException as error:  # noqa: BLE001 - an exit code of Python's own would be taken for a verdict
            result, message = _explain(error, command, given)
            if result == _OUR_ERROR and os.environ.get("COALMINE_DEBUG", "0") != "0":
                traceback.print_exc()
            if message:
                _complain(message)
            return result
        if result == _STOPPED:  # Typer turns Ctrl-C into this number by itself
            where, options = _called(command, given)
            stored = "; finished trials are stored: run the same command again to go on" if "workers" in options else ""
            if stored and " study" in where:  # some of its measures play no trials, and keep nothing
                stored = "; trials that were stored are kept, cells without trials are computed anew"
            who = "asked to end (SIGTERM)" if ended else "stopped by the user"
            _complain(f"{where}: {who}{stored}")
            return _ENDED if ended else _STOPPED
        return result if isinstance(result, int) else 0


def _may_turn(command: Any, given: list[str]) -> bool:
    """Whether a spinner may turn: not beside a progress bar, a question, a server or JSON."""
    where, options = _called(command, given)
    return not {"workers", "yes", "port"} & set(options) and "--json" not in given and where != "coalmine"


@contextlib.contextmanager
def _end_like_stop() -> Iterator[list[int]]:
    """Within it, SIGTERM (a shutdown, a batch system) stops the command as Ctrl-C does: all that was begun is put away.

    Gives the list of the signals that came. Where SIGTERM is ignored already, it stays so.
    """
    came: list[int] = []

    def stop(number: int, _: object) -> None:
        came.append(number)
        raise KeyboardInterrupt

    here = threading.current_thread() is threading.main_thread()
    if not here or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield came
        return
    signal.signal(signal.SIGTERM, stop)
    try:
        yield came
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _explain(error: BaseException, command: Any, given: list[str]) -> tuple[int, str]:
    """The exit code and the line for whatever a command raised."""
    where, options = _called(command, given)
    match error:
        case _CommandLineError():
            context = getattr(error, "ctx", None)
            where = context.command_path if context else "coalmine"
            return _WRONG_INPUT, f"{where}: {_wording(error, given)} (see '{where} --help')"
        case CoalmineError():
            return _WRONG_INPUT, f"{where}: {as_option_names(str(error), options)}"
        case typer.Abort():
            return _STOPPED, f"{where}: stopped by the user"
        case SystemExit() if _COMPLETION in os.environ:  # Typer answers the shell and stops
            return (_WRONG_INPUT if error.code else 0), ""
        case BrokenPipeError() | SystemExit(__context__=BrokenPipeError()):
            _let_go_of_output()
            return _NO_READER, ""
        case SystemExit():
            return _WRONG_INPUT, (
                f"{where}: code that was loaded tried to end the program (sys.exit with {error.code!r}); expected "
                "modules that can be imported and functions that return"
            )
        case ModuleNotFoundError() if (extra := _EXTRAS.get(str(error.name).partition(".")[0])) is not None:
            name = str(error.name).partition(".")[0]
            return _WRONG_INPUT, f"{where}: this needs {name}: install it with pip install 'coalmine[{extra}]'"
        case MemoryError() | RuntimeError() if isinstance(error, MemoryError) or _NO_MEMORY.search(str(error)):
            reason = str(error).splitlines()[0] if str(error) else "none is left"
            less = "ask for less at once: fewer rows, trials, copies or workers, or a smaller model"
            return _WRONG_INPUT, f"{where}: not enough memory ({reason}); {less}"
        case OSError() if error.filename is not None or error.errno in _FULL:
            name = "the output" if error.filename is None else repr(str(error.filename))
            return _WRONG_INPUT, f"{where}: {name} cannot be read or written: {error.strerror}"
    return _OUR_ERROR, (
        f"{where}: an error of Coalmine itself, not of your input: {type(error).__name__}: {error} (please report this "
        "line to the project, with the command, its files, and what it prints with COALMINE_DEBUG=1 set)"
    )


_EXTRAS = {
    "torch": "train",
    "sklearn": "train",
    "pooch": "train",
    "opacus": "opacus",
    "altair": "report",
    "starlette": "view",
    "uvicorn": "view",
    "ray": "ray",
}
"""Packages that not everybody has, and the extra that brings them."""
_COMPLETION = "_COALMINE_COMPLETE"
"""The shell sets this variable when it asks for completions."""


def _let_go_of_output() -> None:
    """Nobody reads what is left: send it nowhere, or Python complains about it at the very end."""
    sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - it lives as long as the process


def _called(command: Any, given: list[str]) -> tuple[str, list[str]]:
    """The full name of the command that was called (``coalmine data fetch``), and the names of its options."""
    path = "coalmine"
    for word in (word for word in given if not word.startswith("-")):
        known = getattr(command, "commands", {}).get(word)
        if known is None:
            break
        command, path = known, f"{path} {word}"
    options = [option.name for option in command.params if option.param_type_name == "option" and option.name]
    return path, [name.rstrip("_") for name in options]  # a name that is a Python word, such as set, ends in "_"


def _wording(error: Any, given: list[str]) -> str:
    """What is wrong with the command line; for a value of the wrong type in our own words, with the value given."""
    message = str(error.format_message())
    kind = next((text for word, text in _KINDS.items() if word in message), None)
    for option in getattr(getattr(error, "param", None), "opts", ()) if kind else ():
        after = [value for word, value in itertools.pairwise(given) if word == option]
        joined = [word.split("=", 1)[1] for word in given if word.startswith(f"{option}=")]
        for value in after + joined:
            return f"{option} = {value!r} is not allowed: expected {kind}"
    return message


_KINDS = {"valid integer": "a whole number", "valid number": "a number", "valid float": "a number"}


def _complain(message: str) -> None:
    """One line on stderr; what is very long in it is cut short, and what a terminal would obey is spelled out."""
    line = re.sub(r"\S{300,}", lambda found: f"{found[0][:120]}...{found[0][-20:]}", " ".join(message.split()))
    line = printable(line)
    typer.echo(line if len(line) <= _LONGEST_LINE else line[: _LONGEST_LINE - 3] + "...", err=True)


_LONGEST_LINE = 1500
