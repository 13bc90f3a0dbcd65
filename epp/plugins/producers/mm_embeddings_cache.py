"""Images, audio and video that encoder caches probably hold, by what was sent where.

Type: `mm-embeddings-cache-producer`.

Engines do not say what their encoder caches hold. So each endpoint has an account of the media that
it was sent, the least recently sent first out, bounded like the cache itself. Media of a split
request are computed by the encode endpoints in turns, else by the prefill endpoint. An engine that
restarted has nothing, once it is seen under its new incarnation. Media are known by a digest of
what the client wrote: an address stands for its image, and the same image written otherwise counts
as another one.

Parameters:
- `cacheSizeInMBPerServer` (4096; at least 0): MiB of embeddings that an endpoint's cache holds; 0
  is the default. Embeddings of one image, audio or video are taken as 2 MiB.

At most 131,072 media are accounted for over all endpoints; then endpoints that got media longest
ago lose theirs first.

```yaml
- type: mm-embeddings-cache-producer
  parameters:
    cacheSizeInMBPerServer: 2048
```
"""

from collections import OrderedDict, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from epp.framework import Decision, Endpoint, EndpointId, Incarnation, Request

DEFAULT_MB = 4096
MAX_MEDIA = 131_072
"""Over all endpoints: about 50 MB of memory."""


@dataclass(slots=True, eq=False)
class _Account:
    """What one endpoint was sent. A set finds it by its place in memory, faster than by an id."""

    incarnation: Incarnation
    media: OrderedDict[int, int] = field(default_factory=OrderedDict[int, int])
    """Bytes by digest, the least recently sent first."""
    bytes: int = 0


class MmEmbeddingsCache:
    produces: ClassVar[frozenset[str]] = frozenset({"encoder-cache"})
    spelled: ClassVar[dict[str, str]] = {"cache_size_in_mb_per_server": "cacheSizeInMBPerServer"}

    def __init__(self, *, cache_size_in_mb_per_server: int = DEFAULT_MB) -> None:
        if cache_size_in_mb_per_server < 0:
            raise ValueError("cacheSizeInMBPerServer must be at least 0")
        self._most_bytes = (cache_size_in_mb_per_server or DEFAULT_MB) * 2**20
        self._accounts: OrderedDict[EndpointId, _Account] = OrderedDict()
        """Those that were sent media, the one that got some longest ago first."""
        self._holders: dict[int, set[_Account]] = {}
        self._count = 0

    def __len__(self) -> int:
        """Media over all endpoints."""
        return self._count

    def held(self, media: Sequence[tuple[int, int]], /) -> Mapping[EndpointId, int]:
        found: defaultdict[_Account, int] = defaultdict(int)
        for digest, size in media:
            for account in self._holders.get(digest, ()):
                found[account] += size
        return {account.incarnation.endpoint: size for account, size in found.items()}

    def chosen(self, request: Request, decision: Decision, /) -> None:
        if not request.media:
            return
        computing = decision.encode or decision.prefill[:1] or decision.chosen[:1]
        for turn, endpoint in enumerate(computing):
            self._sent(endpoint, request.media[turn :: len(computing)])
        while self._count > MAX_MEDIA:
            ident, oldest = next(iter(self._accounts.items()))
            self._drop_oldest(oldest)
            if not oldest.media:
                del self._accounts[ident]

    def removed(self, endpoints: Collection[EndpointId], /) -> None:
        for ident in endpoints:
            self._close(ident)

    def _sent(self, endpoint: Endpoint, media: Sequence[tuple[int, int]]) -> None:
        if not media:
            return
        account = self._accounts.get(endpoint.id)
        if account is not None and account.incarnation != endpoint.incarnation:
            self._close(endpoint.id)
            account = None
        if account is None:
            account = self._accounts[endpoint.id] = _Account(endpoint.incarnation)
        self._accounts.move_to_end(endpoint.id)
        for digest, size in media:
            self._enter(account, digest, size)

    def _enter(self, account: _Account, digest: int, size: int) -> None:
        """The newest is always held, however small the cache is said to be."""
        old = account.media.pop(digest, None)
        account.media[digest] = size
        account.bytes += size - (old or 0)
        if old is None:
            self._count += 1
            self._holders.setdefault(digest, set()).add(account)
        while account.bytes > self._most_bytes and len(account.media) > 1:
            self._drop_oldest(account)

    def _drop_oldest(self, account: _Account) -> None:
        digest, size = account.media.popitem(last=False)
        account.bytes -= size
        self._forget(digest, account)

    def _close(self, ident: EndpointId) -> None:
        account = self._accounts.pop(ident, None)
        if account is not None:
            for digest in account.media:
                self._forget(digest, account)

    def _forget(self, digest: int, account: _Account) -> None:
        self._count -= 1
        holders = self._holders[digest]
        holders.remove(account)
        if not holders:
            del self._holders[digest]
