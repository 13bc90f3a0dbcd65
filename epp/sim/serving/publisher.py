"""KV events on a ZMQ PUB socket, framed as vLLM frames them: topic, sequence, msgpack batch.

A PUB socket never blocks: a subscriber that is too slow or away loses batches and sees a gap. The
last of them are kept for `replays`.
"""

from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import msgspec
import zmq

from epp.sim.kv import KvEvent

HIGH_WATER_MARK = 100_000
"""Batches that wait for one subscriber before some are lost."""

KEPT = 10_000
"""Batches that can be said again; as many as vLLM keeps."""


class EventBatch(msgspec.Struct, frozen=True, array_like=True):
    """Payload of one message."""

    ts: float
    """Unix time in seconds."""
    events: Sequence[KvEvent]
    data_parallel_rank: int | None = 0


class Publisher:
    """One PUB socket and its sequence. Use as a context manager."""

    def __init__(self, endpoint: str, *, bind: bool, topic: str) -> None:
        self.topic = topic.encode()
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=KEPT)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUB)
        self._socket.set_hwm(HIGH_WATER_MARK)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._encoder = msgspec.msgpack.Encoder()
        self.sequence = 0
        """Number of the next batch."""
        self.endpoint = endpoint
        """Where it really is, once entered: a port of 0 has become the one taken."""
        self._bind = bind

    def __enter__(self) -> Self:
        try:
            if self._bind:
                self._socket.bind(self.endpoint)
                taken = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
                self.endpoint = taken.rstrip("\0")
            else:
                self._socket.connect(self.endpoint)
        except zmq.ZMQError:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.close()
        self._context.term()

    def publish(self, events: Sequence[KvEvent], *, ts: float, lost: bool = False) -> None:
        """Send one batch; a `lost` one only takes its sequence number and can be asked for."""
        sequence, payload = self.sequence, self._encoder.encode(EventBatch(ts, events))
        self.sequence += 1
        self._kept.append((sequence, payload))
        if not lost:
            self._socket.send_multipart((self.topic, sequence.to_bytes(8, "big"), payload))

    def since(self, start: int) -> list[tuple[int, bytes]]:
        """Sequence and payload of what is kept, from sequence `start` on."""
        return [kept for kept in self._kept if kept[0] >= start]

    def restart(self) -> None:
        """Count from 0 again, as a new process does."""
        self.sequence = 0
        self._kept.clear()
