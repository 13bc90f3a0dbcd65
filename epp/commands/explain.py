"""`epp explain`: why a request went where it went, asked of a running picker."""

# ruff: noqa: PLC0415 - imports wait for the command that needs them

import re
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any

import typer

from epp.errors import EppError

from .flags import AsJson, run

DEFAULT_ADMIN = "http://127.0.0.1:9091"
TIMEOUT_S = 10.0
MAX_FOUND = 20
"""Decisions of one id that are asked for: a client is free to use its own for all its requests."""

_OWN_ID = re.compile(r"(?:([a-z0-9.-]+)-)?[0-9a-f]{32}")


def explain(
    request_id: Annotated[
        str,
        typer.Argument(help="The picker's own id of a decision, or the client's x-request-id."),
    ],
    *,
    admin: Annotated[
        str, typer.Option(help="Admin port of the replica that decided.")
    ] = DEFAULT_ADMIN,
    admin_token_file: Annotated[
        Path | None, typer.Option(help="File with the token, for a port off loopback.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say why a request went where it went: candidates, scores, who was left out, and the verdict
    on prefill. Exit 2: there is no such decision, and what to do."""
    import json

    from epp.config.token import read_header_token
    from epp.observe.explain_text import text

    token = None if admin_token_file is None else read_header_token(admin_token_file)
    url = admin if "://" in admin else f"http://{admin}"
    page = run(_page(url.rstrip("/"), request_id, token))
    found = page["decisions"]
    if not found:
        why = missing(request_id, page)
        if not as_json:
            raise EppError(why)
        typer.echo(json.dumps(page | {"why": why}))
        raise typer.Exit(2)
    if as_json:
        typer.echo(json.dumps(page))
        return
    if len(found) > 1:
        typer.echo(f"{len(found)} decisions have this id, the newest first.\n")
    typer.echo("\n".join(text(entry, page["now"]) for entry in found), nl=False)


def missing(request_id: str, page: dict[str, Any]) -> str:
    """Why a replica does not know an id, and what to do."""
    from epp.observe.explain_text import moment

    own = _OWN_ID.fullmatch(request_id)
    maker, replica = own[1] if own else None, page["replica"]
    here = f"replica {replica}" if replica else "this replica"
    if maker and maker != replica:
        return f"{here} did not decide that: the id names {maker}; ask its admin port with --admin"
    if not page["kept"]:
        return f"{here} has decided nothing yet; ask another one with --admin"
    told = f"not among the last {page['kept']} decisions of {here}, since {moment(page['since'])}"
    others = "" if maker else ", or another replica decided it: ask each with --admin"
    return f"{told}: it is older, or was refused before anybody was chosen{others}"


async def _page(url: str, request_id: str, token: str | None) -> dict[str, Any]:
    """Raises EppError with what to do."""
    import aiohttp

    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)) as session,
            session.get(
                f"{url}/debug/decisions",
                params={"request_id": request_id, "limit": MAX_FOUND},
                headers={} if token is None else {"authorization": f"Bearer {token}"},
                allow_redirects=False,
            ) as answer,
        ):
            if answer.status == HTTPStatus.UNAUTHORIZED:
                raise EppError(f"{url} asks for its operator's token: --admin-token-file")
            page = await answer.json() if answer.status == HTTPStatus.OK else None
    except aiohttp.InvalidURL:
        raise EppError(f"{url} is no URL; --admin is like {DEFAULT_ADMIN}") from None
    except (aiohttp.ClientConnectionError, TimeoutError) as error:
        told = str(error) or "no answer in time"
        raise EppError(
            f"{url} does not answer ({told}): is the picker up, and is that its --admin-port?"
        ) from None
    except (aiohttp.ClientError, ValueError):
        page = None
    if not (isinstance(page, dict) and {"decisions", "replica", "kept", "now"} <= page.keys()):
        raise EppError(f"{url} is not a picker's admin port")
    return page
