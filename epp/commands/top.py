"""`epp top`: what a running picker knows of its pool, again and again."""

# ruff: noqa: PLC0415 - imports wait for the command that needs them

import sys
from typing import Annotated, Any

import typer

from .asking import DEFAULT_ADMIN, AdminTokenFile, admin_page
from .flags import AsJson, run

_HOME_AND_CLEAR = "\x1b[H\x1b[2J"
EXPECTED = {"pool", "mode", "endpoints", "alarms", "events", "sizes"}


def top(
    *,
    admin: Annotated[str, typer.Option(help="Admin port of a replica.")] = DEFAULT_ADMIN,
    admin_token_file: AdminTokenFile = None,
    interval: Annotated[
        float, typer.Option(min=0.1, max=3600, help="Seconds between two looks.")
    ] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Look once, show every endpoint.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what a running picker knows of each endpoint.

    How fresh its state is, load, reservations of this and of other replicas, observed speeds, and
    what is wrong. One line of JSON a look with --json. Ends with Ctrl-C."""
    from epp.config.token import read_header_token

    token = None if admin_token_file is None else read_header_token(admin_token_file)
    try:
        run(_look(admin, token, interval_s=interval, once=once, as_json=as_json))
    except KeyboardInterrupt:
        raise typer.Exit from None


async def _look(
    admin: str, token: str | None, *, interval_s: float, once: bool, as_json: bool
) -> None:
    """Raises EppError when the picker does not answer."""
    import asyncio

    while True:
        page = await admin_page(admin, "/debug/state", token, expected=EXPECTED)
        _show(page, once=once, as_json=as_json)
        if once:
            return
        await asyncio.sleep(interval_s)


def _show(page: dict[str, Any], *, once: bool, as_json: bool) -> None:
    import json
    import shutil

    from epp.observe.top_text import text

    if as_json:
        typer.echo(json.dumps(page))
    elif once or not sys.stdout.isatty():
        typer.echo(text(page))
    else:
        rows = shutil.get_terminal_size().lines
        typer.echo(_HOME_AND_CLEAR + text(page, most=max(1, rows - 8)), nl=False)
