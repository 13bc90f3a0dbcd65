"""The command line: parse, build settings, call. Nothing is decided here.

Each command imports what it needs when it runs, so that none pays for the others. An error that a
user can mend is one line on stderr and exit code 2.
"""

# ruff: noqa: PLC0415 - see above: imports wait for their command

import resource
import sys
from importlib.metadata import version as installed_version
from typing import Annotated

import typer

from epp.commands.check import check
from epp.commands.doctor import doctor
from epp.commands.explain import explain
from epp.commands.flags import AsJson
from epp.commands.local import bench, local
from epp.commands.manifests import manifests
from epp.commands.sidecar import sidecar
from epp.commands.top import top
from epp.errors import EppError
from sidecar.built import is_compiled

DISTRIBUTION = "gie-epp"
HELP = {"help_option_names": ["--help", "-h"]}
"""For every command; the second as in Go."""

app = typer.Typer(
    name="epp",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings=HELP,
    rich_markup_mode=None,  # it would cut the names of flags, and brackets out of sentences
    help="Endpoint picker for the Gateway API Inference Extension.",
)
app.add_typer(local, name="local")
app.add_typer(bench, name="bench")
app.command()(check)
app.command()(doctor)
app.command()(explain)
app.command()(manifests)
app.command()(sidecar)
app.command()(top)


def _said() -> str:
    number = installed_version(DISTRIBUTION)
    return f"{number} (compiled sidecar)" if is_compiled() else number


def _print_version(*, wanted: bool) -> None:
    if wanted:
        typer.echo(_said())
        raise typer.Exit


@app.callback()
def _whole(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version.",
            is_eager=True,
            callback=lambda wanted: _print_version(wanted=wanted),
        ),
    ] = False,
) -> None:
    """What all commands share: see `app`."""


@app.command()
def version(as_json: AsJson = False) -> None:
    """Print the version, and whether the sidecar is compiled."""
    if not as_json:
        typer.echo(_said())
        return
    import json

    typer.echo(json.dumps({"version": installed_version(DISTRIBUTION), "compiled": is_compiled()}))


def _add_serve(arguments: list[str]) -> list[str]:
    """Register `serve`, which only its own caller pays for; its arguments in our spelling."""
    from epp.commands.go_flags import own_arguments
    from epp.commands.serve import serve

    app.command("serve")(serve)  # once more replaces it
    return own_arguments(arguments) if arguments[:1] == ["serve"] else arguments


def _allow_open_files() -> None:
    """Each stream of a relay holds two sockets, and a shell's usual limit is 1,024 (fault A19)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _say_all(group: BaseExceptionGroup[BaseException]) -> None:
    """A line for each fault that a user can mend: a start fails within the group of its tasks.
    Raises the group where there are others."""
    faults, others = group.split(EppError)
    if others is not None or faults is None:
        raise group
    for error in faults.exceptions:
        if isinstance(error, BaseExceptionGroup):
            _say_all(error)
        else:
            typer.echo(f"epp: {error}", err=True)


def main() -> None:
    """The console script `epp`."""
    _allow_open_files()
    arguments = sys.argv[1:]
    known = {"check", "doctor", "explain", "manifests", "sidecar", "local", "bench", "version"}
    try:
        if not known.intersection(arguments[:1]):
            arguments = _add_serve(arguments)
        app(arguments, prog_name="epp")
    except EppError as error:
        typer.echo(f"epp: {error}", err=True)
        raise SystemExit(2) from None
    except BaseExceptionGroup as group:
        _say_all(group)
        raise SystemExit(2) from None
    except OSError as error:
        about = "" if error.filename is None else f"{error.filename}: "
        typer.echo(f"epp: {about}{error.strerror or error}", err=True)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
