"""Spans wait in a bounded queue, and nobody waits for the collector."""

import asyncio
import threading
from collections.abc import Sequence
from contextlib import asynccontextmanager, suppress

import pytest

from epp.errors import ConfigError
from epp.tracing import queue, sender
from epp.tracing.context import SpanContext
from epp.tracing.queue import BATCH, MAX_WAITING, SpanQueue
from epp.tracing.spans import Span
from tests.fakes.waiting import until


class Collector:
    def __init__(self, *, takes: bool = True) -> None:
        self.takes = takes
        self.batches: list[int] = []
        self.open = threading.Event()
        self.open.set()
        self.closed = False

    def send(self, spans: Sequence[Span]) -> bool:
        self.open.wait(10)
        self.batches.append(len(spans))
        return self.takes

    def close(self) -> None:
        self.closed = True
        self.open.set()


def span(name: str = "s") -> Span:
    context = SpanContext("a" * 32, "b" * 16)
    return Span(name=name, context=context, parent=None, began_s=1, ended_s=2, attributes={})


@asynccontextmanager
async def running(spans: SpanQueue):
    async with asyncio.TaskGroup() as tg:
        task = tg.create_task(spans.run())
        try:
            yield
        finally:
            task.cancel()


async def test_many_spans_are_sent_at_once_and_few_within_a_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue, "PAUSE_S", 0.05)
    collector = Collector()
    spans = SpanQueue(collector)
    async with running(spans):
        for _ in range(BATCH + 1):
            spans.take(span())
        await until(lambda: spans.sent == BATCH + 1)
        spans.take(span())
        await until(lambda: spans.sent == BATCH + 2)
    assert collector.batches == [BATCH, 1, 1]
    assert (spans.lost, len(spans)) == (0, 0)


async def test_at_the_limit_the_oldest_spans_are_lost_and_counted() -> None:
    spans = SpanQueue(Collector())
    for number in range(MAX_WAITING + 3):
        spans.take(span(str(number)))
    assert (len(spans), spans.lost) == (MAX_WAITING, 3)
    await spans.flush()
    assert (spans.sent, spans.lost) == (MAX_WAITING, 3)


async def test_what_does_not_arrive_is_lost_and_counted() -> None:
    spans = SpanQueue(Collector(takes=False))
    spans.take(span())
    await spans.flush()
    assert (spans.sent, spans.lost) == (0, 1)


async def test_a_sender_that_breaks_loses_its_batch_and_no_other() -> None:
    class Broken(Collector):
        def send(self, spans: Sequence[Span]) -> bool:
            super().send(spans)
            raise ValueError

    spans = SpanQueue(Broken())
    spans.take(span())
    with pytest.raises(ValueError):  # noqa: PT011 - whatever it says
        await spans.flush()
    spans.take(span())
    assert (spans.sent, spans.lost, len(spans)) == (0, 1, 1)


async def test_the_end_waits_for_a_collector_only_so_long() -> None:
    collector = Collector()
    collector.open.clear()
    spans = SpanQueue(collector)
    spans.take(span())
    await spans.close(0.05)
    assert collector.closed
    assert spans.lost == 1


async def test_the_last_spans_are_sent_at_the_end() -> None:
    collector = Collector()
    spans = SpanQueue(collector)
    with suppress(asyncio.CancelledError):
        async with running(spans):
            spans.take(span())
            await spans.close(5)
    assert (collector.batches, collector.closed, spans.sent) == ([1], True, 1)


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "epp.tracing.otlp", None)
    with pytest.raises(ConfigError, match=r"gie-epp\[otel\]"):
        sender.open_sender("http://127.0.0.1:1/v1/traces", "x")
