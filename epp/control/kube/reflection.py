"""A list of objects as the API server has it: pages and lines of a watch in, changes out. Pure.

First everything is listed, page by page; then a watch tells what changes from that version on. When
the server has forgotten our version (410), everything is listed again, and what differs from what
we hold is the change: nothing that went away meanwhile stays.
"""

from collections import Counter
from collections.abc import Callable
from enum import Enum
from typing import Generic, TypeVar

import msgspec

from .objects import Held, Meta

T = TypeVar("T")

PAGE = 500
MAX_OBJECTS = 100_000
"""More of one kind are not held."""


class Next(Enum):
    """What the server is asked for next."""

    LIST = "list"
    WATCH = "watch"


class _ListMeta(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _Page(msgspec.Struct, frozen=True, gc=False):
    metadata: _ListMeta = _ListMeta()
    items: list[msgspec.Raw] | None = None


class _Event(msgspec.Struct, frozen=True, gc=False):
    type: str
    object: msgspec.Raw


class _Bare(msgspec.Struct, frozen=True, gc=False):
    """Of any object."""

    metadata: Meta = Meta()


class Failed(msgspec.Struct, frozen=True, gc=False):
    """A `Status` of failure."""

    code: int = 0
    reason: str = ""
    message: str = ""


_PAGE = msgspec.json.Decoder(_Page)
_EVENT = msgspec.json.Decoder(_Event)
_BARE = msgspec.json.Decoder(_Bare)
_FAILED = msgspec.json.Decoder(Failed)

Changes = dict[str, T | None]
"""By key: what it is since, None where it is gone."""


class Reflection(Generic[T]):
    """See the module. `counts` says what was heard, by a fixed set of words: events, bookmarks,
    lists, expired, stale, odd, limited."""

    def __init__(
        self, read: Callable[[msgspec.Raw], Held[T]], *, most: int = MAX_OBJECTS, page: int = PAGE
    ) -> None:
        """`read` raises ValueError for what it cannot use; that object is then none of ours."""
        self.counts: Counter[str] = Counter()
        self.listed = False
        """Everything was listed at least once."""
        self.version = ""
        """Where the next watch begins; empty: list first."""
        self._read = read
        self._most = most
        self._page = page
        self._held: dict[str, Held[T]] = {}
        self._coming: dict[str, Held[T]] = {}
        self._continue = ""

    @property
    def values(self) -> dict[str, T]:
        return {key: held.value for key, held in self._held.items()}

    def __len__(self) -> int:
        return len(self._held)

    @property
    def next(self) -> Next:
        return Next.WATCH if self.version else Next.LIST

    @property
    def query(self) -> dict[str, str]:
        """Of the next request; the selector and how long a watch may take come from elsewhere."""
        if self.version:
            return {
                "watch": "true",
                "allowWatchBookmarks": "true",
                "resourceVersion": self.version,
            }
        asked = {"limit": str(self._page)}
        if self._continue:
            asked["continue"] = self._continue
        return asked

    def page(self, body: bytes) -> Changes[T] | None:
        """One page of the list. None while more are to come. Raises ValueError if it is none."""
        page = _PAGE.decode(body)
        if not page.metadata.resource_version:
            raise ValueError("an answer is no list: it has no version")
        for raw in page.items or ():
            held = self._reading(raw)
            if held is not None and self._has_room(self._coming, held.key):
                self._coming[held.key] = held
        self._continue = page.metadata.continue_
        if self._continue:
            return None
        changes: Changes[T] = {key: None for key in self._held if key not in self._coming}
        for key, held in self._coming.items():
            known = self._held.get(key)
            if known is None or known.value != held.value:
                changes[key] = held.value
        self._held, self._coming = self._coming, {}
        self.version = page.metadata.resource_version
        self.listed = True
        self.counts["lists"] += 1
        return changes

    def line(self, line: bytes) -> Changes[T] | Failed:
        """One line of the watch. Raises ValueError for half a line: watch again from here.

        A `Failed` ends the watch; the reflection has already drawn its own conclusion.
        """
        event = _EVENT.decode(line)
        if event.type == "ERROR":
            failed = _FAILED.decode(event.object)
            if failed.code == 410:
                self.expired()
            return failed
        if event.type not in {"ADDED", "MODIFIED", "DELETED", "BOOKMARK"}:
            self.counts["odd"] += 1
            return {}
        meta = _BARE.decode(event.object).metadata
        later = _later(meta.resource_version, self.version)
        if later:
            self.version = meta.resource_version
        if event.type == "BOOKMARK":
            self.counts["bookmarks"] += 1
            return {}
        if not later:
            self.counts["stale"] += 1
            return {}
        self.counts["events"] += 1
        if event.type == "DELETED":
            return {} if self._held.pop(meta.key, None) is None else {meta.key: None}
        return self._taken(event.object, meta.key)

    def expired(self) -> None:
        """The server has forgotten our version, or our place in its list: list from the start."""
        self.counts["expired"] += 1
        self.version = self._continue = ""
        self._coming.clear()

    def absent(self) -> Changes[T]:
        """There is no such kind: nothing is held any more."""
        self.version = self._continue = ""
        self._coming.clear()
        gone: Changes[T] = dict.fromkeys(self._held)
        self._held.clear()
        self.listed = True
        return gone

    def _taken(self, raw: msgspec.Raw, key: str) -> Changes[T]:
        """An object that cannot be read any more is none of ours any more."""
        held = self._reading(raw)
        known = self._held.get(key)
        if held is None:
            self._held.pop(key, None)
            return {} if known is None else {key: None}
        if not self._has_room(self._held, key):
            return {}
        self._held[key] = held
        return {} if known is not None and known.value == held.value else {key: held.value}

    def _reading(self, raw: msgspec.Raw) -> Held[T] | None:
        try:
            return self._read(raw)
        except ValueError:
            self.counts["odd"] += 1
            return None

    def _has_room(self, held: dict[str, Held[T]], key: str) -> bool:
        if key in held or len(held) < self._most:
            return True
        self.counts["limited"] += 1
        return False


def _later(version: str, than: str) -> bool:
    """Versions of one kind grow; one that is no number is only told from an equal one."""
    if version.isdigit() and than.isdigit():
        return int(version) > int(than)
    return version != than
