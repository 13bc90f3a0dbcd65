"""How commands ask a running picker: by its admin port."""

# ruff: noqa: PLC0415 - imports wait for the command that needs them

from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any

import typer

from epp.errors import EppError

DEFAULT_ADMIN = "http://127.0.0.1:9091"
TIMEOUT_S = 10.0

AdminTokenFile = Annotated[
    Path | None, typer.Option(help="File with the token, for a port off loopback.")
]


async def admin_page(
    admin: str,
    path: str,
    token: str | None,
    *,
    expected: set[str],
    query: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """A page of the admin port, an object with these keys. Raises EppError with what to do."""
    import aiohttp

    url = (admin if "://" in admin else f"http://{admin}").rstrip("/")
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)) as session,
            session.get(
                f"{url}{path}",
                params=query,
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
    if not (isinstance(page, dict) and expected <= page.keys()):
        raise EppError(f"{url} is not a picker's admin port")
    return page
