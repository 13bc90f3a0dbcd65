"""Long computations leave the event loop, and their queue is bounded."""

import asyncio
import threading

import pytest

from epp.request.offload import INLINE_BYTES, BusyError, Offload


async def test_small_work_runs_at_once_and_large_work_in_a_thread() -> None:
    with Offload() as offload:
        assert await offload.run(INLINE_BYTES, threading.get_ident) == threading.get_ident()
        assert await offload.run(INLINE_BYTES + 1, threading.get_ident) != threading.get_ident()


async def test_more_than_the_limit_is_refused_and_counted() -> None:
    gate = threading.Event()
    with Offload(workers=1, max_pending=2) as offload:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(2):
                tasks.create_task(offload.run(INLINE_BYTES + 1, lambda: gate.wait(5)))
            await asyncio.sleep(0)
            assert offload.pending == 2
            with pytest.raises(BusyError):
                await offload.run(INLINE_BYTES + 1, lambda: None)
            assert offload.refused == 1
            gate.set()
        assert await offload.run(INLINE_BYTES + 1, lambda: 5) == 5
    assert offload.pending == 0


async def test_a_caller_that_leaves_keeps_its_place_until_the_work_is_over() -> None:
    gate = threading.Event()
    with Offload(workers=1, max_pending=2) as offload:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await offload.run(INLINE_BYTES + 1, lambda: gate.wait(5))
        assert offload.pending == 1
        gate.set()
    assert offload.pending == 0


async def test_an_error_of_the_work_reaches_its_caller() -> None:
    def fail() -> None:
        raise ValueError("x")

    with Offload() as offload:
        for size in (1, INLINE_BYTES + 1):
            with pytest.raises(ValueError, match="x"):
                await offload.run(size, fail)
        assert offload.pending == 0
