"""Builds what follows the engine's KV events, from the sidecar's settings."""

from collections.abc import Callable
from functools import partial

from epp.config.salt_key import read_salt_key
from epp.state.blocks import Naming
from epp.state.engine_blocks import Delta
from epp.state.subscriber import EventSubscriber, of_rank
from epp.state.writing.cache import CacheMirror
from epp.state.writing.following import Following, Taker
from sidecar.settings import SidecarSettings


def mirror_of(
    settings: SidecarSettings, clock: Callable[[], float]
) -> Callable[[Callable[[Delta], None]], CacheMirror]:
    """What makes the mirror. Raises ConfigError for a key file that cannot be used."""
    file = settings.salt_key_file
    naming = Naming.of_pool(
        settings.pool,
        salt_key=None if file is None else read_salt_key(file),
        namespace=settings.cache_namespace,
    )
    return partial(
        CacheMirror,
        naming=naming,
        replays=settings.kv_replay is not None,
        rank=settings.dp_rank,
        clock=clock,
    )


def following_of(settings: SidecarSettings, taker: Taker) -> Following:
    """Where KV events come from. Raises SubscribeError for an endpoint that has no ranks."""
    assert settings.kv_events is not None
    rank = settings.dp_rank or 0
    replay = settings.kv_replay
    events = of_rank(settings.kv_events, rank) if rank else settings.kv_events
    return Following(
        EventSubscriber(events, bind=settings.kv_events_bind),
        taker,
        replay=of_rank(replay, rank) if rank and replay is not None else replay,
    )
