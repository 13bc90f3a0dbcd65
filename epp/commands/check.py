"""`epp check`: what a configuration will do, or where it is wrong."""

# ruff: noqa: PLC0415 - imports wait for the command that needs them

from pathlib import Path
from typing import Annotated

import typer

from epp.errors import ConfigError

from .flags import AsJson


def check(
    file: Annotated[
        Path | None,
        typer.Argument(help="EndpointPickerConfig (default: what runs without any)."),
    ] = None,
    *,
    as_json: AsJson = False,
    allow_experimental_plugins: Annotated[
        bool,
        typer.Option("--allow-experimental-plugins", help="As `epp serve` would be started."),
    ] = False,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema of such files instead.")
    ] = False,
) -> None:
    """Say what a configuration will run, or where it is wrong.

    Profiles, plugins, and who feeds whom. Exit 2: it cannot be used, and where it is wrong."""
    import json

    from epp.config import picker_config
    from epp.request.plan import report
    from epp.request.plan.entries import Options
    from epp.request.plan.source import PlanSource

    if schema:
        typer.echo(picker_config.schema_text(), nl=False)
        return
    source = PlanSource(file=file, options=Options(allow_experimental=allow_experimental_plugins))
    try:
        plan = source.plan(source.read())
    except ConfigError as error:
        if not as_json:
            raise
        typer.echo(json.dumps({"usable": False, "where": error.where, "what": error.what}))
        raise typer.Exit(2) from None
    if as_json:
        typer.echo(json.dumps({"usable": True} | report.document(plan)))
    else:
        typer.echo(report.text(plan), nl=False)
