"""A simulated engine's lives in real time."""

from collections.abc import Sequence

from epp.sim.serving.driver import Driver, Feed, Life, Lost
from epp.sim.settings import CoreSettings
from epp.sim.submission import Output, Submission


def _submissions() -> Sequence[Submission]:
    return [Submission(id="one", prompt=(1, 2), max_tokens=3)]


async def test_what_a_process_had_not_said_when_it_ended_it_never_says() -> None:
    """Its blocks would be offered in the name of the next life, which has others there."""
    life = Life()
    feed = Feed(_submissions(), life)
    output = Output(id="one", token=7, index=0, cached_tokens=0)
    feed.put(output)
    feed.put(output)
    assert await feed.next() is output
    life.over = True
    assert await feed.next() is Lost.RESTARTED


async def test_each_restart_is_another_life() -> None:
    driver = Driver(
        CoreSettings(), clock=lambda: 0.0, publish=lambda _: None, new_id=iter("abc").__next__
    )
    before = driver.submit(_submissions())
    driver.restart()
    after = driver.submit(_submissions())
    after.put(Output(id="one", token=7, index=0, cached_tokens=0))
    assert await before.next() is Lost.RESTARTED
    assert isinstance(await after.next(), Output)
    assert driver.engine_id == "b"
