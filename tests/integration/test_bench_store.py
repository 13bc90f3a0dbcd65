"""`epp bench store` measures what it says, over a real Redis."""

import json

from epp.commands.store import bench, shown
from epp.state.store.place import read_access
from tests.fakes.redis_server import running


async def test_a_small_pool_is_weighed_and_known() -> None:
    with running() as server:
        access = read_access(server.url)
        found = await bench(access, endpoints=6, own_blocks=2_000, seed=1)
    assert (found.pairs, found.engine_blocks) == (12_000, 48_000)
    assert 8 < found.bytes_per_engine_block <= 24
    assert json.loads(shown(found, as_json=True))["endpoints"] == 6
    assert "B per engine block" in shown(found, as_json=False)
