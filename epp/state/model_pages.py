"""Read from each endpoint's page of models what it serves; a shell around `served_models`.

Pages are read one round after another, a bounded number of them at the same time. One that cannot
be read changes nothing: what the endpoint said before is believed until it says otherwise or leaves
the pool.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import aiohttp

from epp.framework import EndpointId

from .served_models import models_on

MAX_PAGE_BYTES = 1 << 20
PAGES = "pages"
"""The outcome of a page that was read."""
_LOOK_S = 0.5
"""How soon another plan is noticed."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the plan in force wants to know."""

    path: str
    interval_s: float
    plan: int
    """Another number is another plan, whose plugins may know nothing yet."""


class Place(Protocol):
    """A member of the pool, as far as it is asked for its models."""

    @property
    def id(self) -> EndpointId: ...
    @property
    def address(self) -> str: ...


class ModelPages:
    """`run` until cancelled. `counts`: pages, and faults by their kind.

    `asked` gives None while nobody wants to know. `told` gets what each endpoint serves whenever
    its page was read; the endpoint may have left the pool meanwhile.
    """

    def __init__(
        self,
        *,
        members: Callable[[], Iterable[Place]],
        asked: Callable[[], Asked | None],
        told: Callable[[EndpointId, frozenset[str]], None],
        clock: Callable[[], float],
        timeout_s: float = 2.0,
        at_once: int = 16,
    ) -> None:
        """`at_once`: pages that are read at the same time."""
        self.counts: Counter[str] = Counter()
        self._members = members
        self._asked = asked
        self._told = told
        self._clock = clock
        self._timeout_s = timeout_s
        self._at_once = at_once

    async def run(self) -> None:
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._at_once, limit_per_host=2),
            timeout=aiohttp.ClientTimeout(total=self._timeout_s),
            cookie_jar=aiohttp.DummyCookieJar(),
        ) as session:
            before, due = None, 0.0
            while True:
                asked = self._asked()
                if asked is not None and (asked != before or self._clock() >= due):
                    due = self._clock() + asked.interval_s
                    await self._round(session, asked.path)
                before = asked
                await asyncio.sleep(_LOOK_S)

    async def _round(self, session: aiohttp.ClientSession, path: str) -> None:
        """Every member once."""
        waiting = iter(list(self._members()))

        async def read() -> None:
            for member in waiting:
                url = f"http://{member.address}{path}"
                outcome, models = await self._read(session, url)
                self.counts[outcome] += 1
                if outcome == PAGES:
                    self._told(member.id, models)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._at_once):
                tasks.create_task(read())

    async def _read(self, session: aiohttp.ClientSession, url: str) -> tuple[str, frozenset[str]]:
        """How it went, and the names."""
        outcome, page = await read_page(session, url)
        try:
            return outcome, models_on(page) if outcome == PAGES else frozenset()
        except ValueError:
            return "broken", frozenset()


async def read_page(session: aiohttp.ClientSession, url: str) -> tuple[str, bytes]:
    """How it went, and the page's bytes, none but for `PAGES`."""
    try:
        async with session.get(url, allow_redirects=False) as answer:
            if answer.status != 200:
                return "status", b""
            body = await _body(answer)
    except TimeoutError:
        return "timeout", b""
    except aiohttp.ClientConnectorError:
        return "unreachable", b""
    except (aiohttp.ClientError, OSError):
        return "broken", b""
    return ("too-large", b"") if len(body) > MAX_PAGE_BYTES else (PAGES, body)


async def _body(answer: aiohttp.ClientResponse) -> bytes:
    """All of it, or a little more than a page may have."""
    body = bytearray()
    async for piece in answer.content.iter_any():
        body += piece
        if len(body) > MAX_PAGE_BYTES:
            break
    return bytes(body)
