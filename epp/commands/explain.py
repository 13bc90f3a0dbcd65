"""`epp explain`: why a request went where it went, asked of a running picker."""

# ruff: noqa: PLC0415 - imports wait for the command that needs them

import re
from typing import Annotated, Any

import typer

from epp.errors import EppError

from .asking import DEFAULT_ADMIN, AdminTokenFile, admin_page
from .flags import AsJson, run

MAX_FOUND = 20
"""Decisions of one id that are asked for: a client is free to use its own for all its requests."""

EXPECTED = {"decisions", "replica", "kept", "now"}
_OF_AN_ANSWER = re.compile(r"(?:chatcmpl-|cmpl-|resp_|msg_)(.+)")
"""Ids of vLLM's answers go on as the x-request-id of the request."""
_OWN_ID = re.compile(r"(?:([a-z0-9.-]+)-)?[0-9a-f]{32}")


def explain(
    request_id: Annotated[
        str,
        typer.Argument(
            help="The picker's own id of a decision, the x-request-id, or the id of an answer of "
            "vLLM, such as cmpl-…"
        ),
    ],
    *,
    admin: Annotated[
        str, typer.Option(help="Admin port of the replica that decided.")
    ] = DEFAULT_ADMIN,
    admin_token_file: AdminTokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Say why a request went where it went.

    Candidates, scores, who was left out, and the verdict on prefill. Exit 2: there is no such
    decision, and what to do."""
    import json

    from epp.config.token import read_header_token
    from epp.observe.explain_text import text

    token = None if admin_token_file is None else read_header_token(admin_token_file)

    def asked(name: str) -> dict[str, Any]:
        query = {"request_id": name, "limit": str(MAX_FOUND)}
        return run(admin_page(admin, "/debug/decisions", token, expected=EXPECTED, query=query))

    page, of_answer = asked(request_id), _OF_AN_ANSWER.fullmatch(request_id)
    if not page["decisions"] and of_answer is not None:
        page = asked(of_answer[1])
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
