"""Settings that hold for every test."""

import asyncio
import os

from hypothesis import HealthCheck, settings

# A test plugin asks for "the" event loop before synchronous tests. Without this, that makes one
# which nobody closes, and the warning about it fails whichever test happens to run by then.
asyncio.set_event_loop(None)

settings.register_profile("default", deadline=None)
settings.register_profile(
    "ci", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
