"""One watch: what happened since a version, as a client with its selectors sees it."""

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator

from .resources import CRDS, Object, Resource
from .store import Change, Store, as_version

QUEUE = 100_000

Shown = Callable[[Object], bool]


class Watch:
    """Gives lines. Closed by `end`, or by its server."""

    def __init__(self, store: Store, of: Resource, namespace: str | None, shown: Shown) -> None:
        self._store = store
        self._of = of
        self._namespace = namespace
        self._shown = shown
        self._waiting: asyncio.Queue[bytes | None] = asyncio.Queue(QUEUE)
        store.changed.append(self._see)

    def begin(self, version: int | None, *, initial: bool) -> None:
        """Queue what happened since `version`; all there is without one. Raises Failure 410.

        `initial`: a bookmark says where the first state ends.
        """
        if version is None or initial:
            for found in self._store.listed(self._of, self._namespace):
                if self._shown(found):
                    self._put(_line("ADDED", found))
            if initial:
                self.bookmark({"k8s.io/initial-events-end": "true"})
            return
        for change in self._store.since(version):
            self._see(change)

    def bookmark(self, annotations: dict[str, str] | None = None) -> None:
        metadata: Object = {"resourceVersion": str(self._store.version)}
        if annotations:
            metadata["annotations"] = annotations
        kind = {"kind": self._of.kind, "apiVersion": self._of.api_version}
        self._put(_line("BOOKMARK", {**kind, "metadata": metadata}))

    def end(self) -> None:
        self._put(None)

    def close(self) -> None:
        with contextlib.suppress(ValueError):
            self._store.changed.remove(self._see)

    async def next(self) -> bytes | None:
        """The next line; None at the end."""
        return await self._waiting.get()

    def _put(self, line: bytes | None) -> None:
        self._waiting.put_nowait(line)

    def _see(self, change: Change) -> None:
        if change.key[:2] == CRDS.family and self._is_over():
            self.end()
        if change.key[:2] != self._of.family:
            return
        if self._namespace is not None and change.key[2] != self._namespace:
            return
        for line in self._lines(change):
            self._put(line)

    def _is_over(self) -> bool:
        """The kind is not installed any more."""
        of = self._of
        return self._store.resource(of.group, of.version, of.plural) is None

    def _lines(self, change: Change) -> Iterator[bytes]:
        """What leaves a selector's view is deleted, with what was last seen of it."""
        before = change.before if change.before and self._shown(change.before) else None
        after = change.after if change.after and self._shown(change.after) else None
        if after is not None:
            word = "ADDED" if before is None else "MODIFIED"
            yield _line(word, as_version(after, self._of))
        elif before is not None:
            last = as_version(before, self._of)
            metadata = {**last["metadata"], "resourceVersion": str(change.version)}
            yield _line("DELETED", {**last, "metadata": metadata})


def _line(word: str, found: Object) -> bytes:
    return json.dumps({"type": word, "object": found}, separators=(",", ":")).encode() + b"\n"


def error_line(status: Object) -> bytes:
    return _line("ERROR", status)
