"""Settings that hold for every test."""

import asyncio
import os
import resource
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# A test plugin asks for "the" event loop before synchronous tests. Without this, that makes one
# which nobody closes, and the warning about it fails whichever test happens to run by then.
asyncio.set_event_loop(None)

# Tests with hundreds of streams hold both ends of them; a shell's usual limit is 1,024 files.
_, _files = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (_files, _files))

settings.register_profile("default", deadline=None)
settings.register_profile(
    "ci", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(params=["own", "aiohttp"])
def each_relay(request: pytest.FixtureRequest) -> Iterator[str]:
    """The test runs with both relays of the sidecar; this is the one at present."""
    from tests.fakes import relays

    before, relays.kind = relays.kind, request.param
    yield relays.kind
    relays.kind = before
