"""``coalmine view``: a page over a store, live on this machine or as files to share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from coalmine.cli._output import print_lines


class _OpenByDefault(TyperGroup):
    """``coalmine view STORE`` is ``coalmine view open STORE``: what is no command is a store."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in ("-h", "--help")):
            args = ["open", *args]
        return super().parse_args(ctx, args)


view = typer.Typer(
    cls=_OpenByDefault,
    help="Look at a store in a browser: live on this machine (coalmine view [STORE]), or as files to share.",
)


@view.command("open", short_help="Serve the pages on this machine until Ctrl-C.")
def open_(
    store: Annotated[Path, typer.Argument(help="The store to look at.")] = Path("coalmine.db"),
    port: Annotated[int, typer.Option(help="Where to listen on this machine; 0 takes a free port.")] = 0,
    browser: Annotated[bool, typer.Option("--browser", help="Open the page in a browser.")] = False,
) -> None:
    """Serve the pages of a store on this machine until Ctrl-C; also while an audit writes it."""
    from coalmine import view as pages
    from coalmine.store import Store

    pages.check_packages()
    from coalmine.view.server import serve

    def ready(address: str) -> None:
        print_lines([f"Open {address}", "Only this machine can reach it, and it only reads. Ctrl-C ends it."])
        if browser:
            typer.launch(address)

    with Store.open(store, create=False, read_only=True) as opened:
        serve(opened, port=port, ready=ready)


@view.command(short_help="Write the same pages as files to share.")
def bundle(
    folder: Annotated[Path, typer.Argument(help="Where to write the pages; made if it is not there.")],
    audit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="<str>", help="Only this audit or result: its name, or how its fingerprint begins (repeatable)."
        ),
    ] = None,
    store: Annotated[Path, typer.Option(help="The store to look at.")] = Path("coalmine.db"),
) -> None:
    """Write the same pages as files: they open without a server. They show scores, settings and reasons of failures."""
    from coalmine import view as pages
    from coalmine.store import Store

    pages.check_packages()
    from coalmine.view.bundle import write_bundle

    with Store.open(store, create=False, read_only=True) as opened:
        written = write_bundle(opened, folder, audits=audit or ())
    print_lines([f"{len(written)} files in {folder}: open {folder / 'index.html'}"])
