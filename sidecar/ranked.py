"""Names one data parallel rank to an API server that serves several."""

from dataclasses import replace

from .http.client import Answer, Asked, Call, Listener, Upstream
from .transfer.targets import Target

HEADER = b"x-data-parallel-rank"


class Ranked:
    """An `Upstream` whose requests to the engine carry the rank, as the pod counts it from 0. What
    goes to other machines does not: their own sidecars know theirs."""

    def __init__(self, inner: Upstream, rank: int) -> None:
        self.inner = inner
        self._field = (HEADER, b"%d" % rank)

    @property
    def repeats(self) -> int:
        return self.inner.repeats

    async def __aenter__(self) -> Upstream:
        await self.inner.__aenter__()
        return self

    async def __aexit__(self, *args: object) -> None:
        await self.inner.__aexit__(*args)

    async def send(self, call: Call) -> Answer:
        return await self.inner.send(self._named(call))

    async def send_once(self, call: Call) -> Answer:
        return await self.inner.send_once(self._named(call))

    async def send_again(self, call: Call) -> Answer:
        return await self.inner.send_again(self._named(call))

    async def send_to(self, target: Target, call: Call, *, plain: bool = False) -> Answer:
        return await self.inner.send_to(target, call, plain=plain)

    def ask(self, listener: Listener, call: Call, *, once: bool) -> Asked:
        return self.inner.ask(listener, self._named(call), once=once)

    def ask_at(self, target: Target, listener: Listener, call: Call) -> Asked:
        return self.inner.ask_at(target, listener, call)

    def _named(self, call: Call) -> Call:
        if call.lines is not None:
            return replace(call, lines=b"%b%b: %b\r\n" % (call.lines, *self._field))
        return replace(call, fields=[*call.fields, self._field])
