"""The command line: one file a command, no arithmetic. Exit codes: 0 done, 1 a claim is refuted, 2 bad usage."""

from __future__ import annotations

import itertools
import sys
from typing import Annotated, Any

import typer

import coalmine
from coalmine.cli import (
    account,
    adversaries,
    audit,
    bound,
    calibrate,
    choose,
    counterexample,
    data,
    plan,
    report,
    runs,
    study,
)
from coalmine.cli._output import as_option_names
from coalmine.errors import CoalmineError

app = typer.Typer(
    name="coalmine",
    help="Measure how much a differentially private training algorithm really leaks.",
    invoke_without_command=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"coalmine {coalmine.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Measure how much a differentially private training algorithm really leaks."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


app.command("audit")(audit.audit)
app.command("adversaries")(adversaries.adversaries)
app.command("report")(report.report)
app.add_typer(runs.runs, name="runs")
app.add_typer(study.study, name="study")
app.command("account")(account.account)
app.command("bound")(bound.bound)
app.command("calibrate")(calibrate.calibrate)
app.command("choose")(choose.choose)
app.command("counterexample")(counterexample.counterexample)
app.command("plan")(plan.plan)
app.add_typer(data.app)

# Typer may bring its own copy of click, so its exception types are taken from Typer's public names.
_CommandLineError: Any = typer.BadParameter.__bases__[0].__bases__[0]


_STOPPED = 130


def main(arguments: list[str] | None = None) -> int:
    """Run one command; return its exit code. Bad input ends in one line on stderr and code 2, never a traceback."""
    command = typer.main.get_command(app)
    given = sys.argv[1:] if arguments is None else arguments
    try:
        result = command.main(args=given, prog_name="coalmine", standalone_mode=False)
    except _CommandLineError as error:
        context = getattr(error, "ctx", None)
        where = context.command_path if context else "coalmine"
        _complain(f"{where}: {_wording(error, given)} (see '{where} --help')")
        return 2
    except CoalmineError as error:
        where, options = _called(command, given)
        _complain(f"{where}: {as_option_names(str(error), options)}")
        return 2
    except MemoryError as error:
        where, _ = _called(command, given)
        reason = str(error) or "none is left"
        _complain(f"{where}: not enough memory ({reason}); ask for less at once: fewer rows, copies or workers")
        return 2
    except (typer.Abort, KeyboardInterrupt):
        result = _STOPPED
    if result == _STOPPED:  # Typer turns Ctrl-C into this number by itself
        where, options = _called(command, given)
        stored = "; finished trials are stored: run the same command again to go on" if "workers" in options else ""
        _complain(f"{where}: stopped by the user{stored}")
    return result if isinstance(result, int) else 0


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
    """One line on stderr."""
    typer.echo(" ".join(message.split()), err=True)
