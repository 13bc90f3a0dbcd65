"""When a pod may end: nothing in flight, and no blocks that others still pull."""

import asyncio

import pytest

from sidecar.draining import Drain


class Pod:
    """A pod whose work and blocks a test sets; its clock is the loop's."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.blocks = False
        self.asked_since: list[float] = []
        self.refusing = False

    def uses_blocks(self, since: float) -> bool:
        self.asked_since.append(since)
        return self.blocks

    def refuse(self) -> None:
        self.refusing = True

    def drain(self, *, settle_s: float = 0.0, grace_s: float = 30.0) -> Drain:
        return Drain(
            begun=self.refuse,
            work=self,
            blocks=self,
            settle_s=settle_s,
            grace_s=grace_s,
            clock=asyncio.get_running_loop().time,
        )


def now() -> float:
    return asyncio.get_running_loop().time()


pytestmark = pytest.mark.looptime


async def test_an_idle_pod_refuses_at_once_and_may_end_when_gateways_have_noticed() -> None:
    pod = Pod()
    async with asyncio.TaskGroup() as tg:
        draining = tg.create_task(pod.drain(settle_s=2.0).run())
        await asyncio.sleep(0)
        assert pod.refusing
    assert draining.result() == 0
    assert now() == pytest.approx(2.0, abs=0.1)


async def test_what_has_begun_is_finished() -> None:
    pod = Pod()
    pod.in_flight = 3
    asyncio.get_running_loop().call_later(7.0, setattr, pod, "in_flight", 0)
    assert await pod.drain().run() == 0
    assert now() == pytest.approx(7.0, abs=0.1)


async def test_blocks_that_another_pod_pulls_keep_the_pod() -> None:
    pod = Pod()
    pod.in_flight, pod.blocks = 1, True
    loop = asyncio.get_running_loop()
    loop.call_later(1.0, setattr, pod, "in_flight", 0)
    loop.call_later(4.0, setattr, pod, "blocks", False)
    assert await pod.drain().run() == 0
    assert now() == pytest.approx(4.0, abs=0.1)
    assert pod.asked_since[0] == pytest.approx(1.0, abs=0.1), "older reports say nothing"


async def test_a_request_that_still_comes_is_served_too() -> None:
    pod = Pod()
    loop = asyncio.get_running_loop()
    pod.blocks = True
    loop.call_later(1.0, setattr, pod, "in_flight", 1)
    loop.call_later(2.0, setattr, pod, "in_flight", 0)
    loop.call_later(3.0, setattr, pod, "blocks", False)
    await pod.drain().run()
    assert pod.asked_since[-1] == pytest.approx(2.0, abs=0.1)


@pytest.mark.parametrize("kept", ["in_flight", "blocks"])
async def test_the_grace_ends_it_and_says_what_is_left(kept: str) -> None:
    pod = Pod()
    setattr(pod, kept, 5)
    left = await pod.drain(settle_s=1.0, grace_s=30.0).run()
    assert left == pod.in_flight
    assert now() == pytest.approx(30.0, abs=0.1)
