"""What decides about requests, put together from a replica's parts."""

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import replace

import aiohttp
import structlog

from epp.picker import Picker, clock
from epp.request.admin_token import AdminToken
from epp.request.apis.catalog import Rules
from epp.request.attempts import Attempts
from epp.request.director import PickDirector, PickSettings
from epp.request.exchange import Director
from epp.request.neighbours import Observer
from epp.request.offload import Offload
from epp.request.plan import feeds
from epp.request.replica import new_ids
from epp.request.tokens import MAX_KEYS, Prefixes, Spawn, Tokens, rendering
from epp.request.tokens.engine import EngineTokenizer
from epp.request.traced import Heard, Traced
from epp.tracing.queue import SpanQueue
from epp.tracing.spans import Tracer

PREFIX_BYTES = 64 * 1024 * 1024
"""Memory for what is known of beginnings of prompts: those of thousands of long chats."""

log = structlog.get_logger(__name__)


def director_of(
    picker: Picker,
    session: aiohttp.ClientSession,
    offload: Offload,
    spawn: Spawn,
    *,
    also: Sequence[Observer] = (),
) -> PickDirector:
    """The order of a request's steps, with the parts that live as long as the ports do.

    Their numbers join the picker's metrics. `also` is told of decisions besides.
    """
    if picker.settings.conformance:
        log.warning("CONFORMANCE MODE: any client can choose its endpoint; never in production")
    deadline_s = picker.settings.decision_deadline_s
    tokens = _tokens(picker, session, offload, spawn)
    attempts = Attempts()
    picker.metrics.sources = replace(
        picker.metrics.sources,
        pool=picker.pool,
        tokens=tokens,
        switch=picker.switch,
        config=picker.reload,
        objectives=picker.objectives_reload,
        attempts=attempts,
    )
    return PickDirector(
        pool=picker.pool,
        tokens=tokens,
        offload=offload,
        switch=picker.switch,
        live=picker.live,
        ballot=picker.ballot,
        chance=picker.chance,
        clock=clock,
        ids=new_ids(picker.settings.pod_name),
        admin=AdminToken(picker.admin_token),
        sealer=picker.sealer,
        attempts=attempts,
        observers=[picker.metrics, picker.explain, picker.alarm, tokens.watch, *also],
        meters=picker.metrics.meters,
        objectives=picker.objectives,
        settings=PickSettings(
            deadline_s=deadline_s,
            tokens_s=deadline_s / 2,
            destinations=picker.settings.max_endpoints,
            subset_filter=not picker.settings.disable_endpoint_subset_filter,
            emit_scores=picker.settings.emit_endpoint_scores,
            conformance=picker.settings.conformance,
        ),
        rules=Rules(
            known_models=frozenset(picker.settings.known_models),
            max_body_bytes=picker.settings.max_request_bytes,
        ),
    )


def traced(director: Director, heard: Heard, spans: SpanQueue, share: float) -> Director:
    """`director` with a trace of what it decides, which all behind it tell to `heard`."""
    tracer = Tracer(
        rng=random.Random(),
        wall_s=lambda: time.time_ns() / 1e9,
        share=share,
        listener=spans,
    )
    return Traced(director, heard, tracer)


def _tokens(
    picker: Picker, session: aiohttp.ClientSession, offload: Offload, spawn: Spawn
) -> Tokens:
    """Where tokens come from. Raises ConfigError for files that cannot be used."""
    exact = picker.settings.tokenizer != "estimate" and feeds.exact_tokens(picker.live.built)
    directory = picker.settings.tokenizer_dir if exact else None
    prefixes = Prefixes(
        PREFIX_BYTES, block_tokens=picker.pool.rules.own_block_tokens, max_keys=MAX_KEYS
    )
    models = None
    if directory is not None:
        from epp.request.tokens.models import Models  # noqa: PLC0415 - it needs an extra

        models = Models(directory, prefixes)
        spawn(asyncio.to_thread(models.load))
    url = picker.settings.render_url
    renderer = picker.someone if url is None else lambda: url
    paths = rendering.PATHS if exact else {}
    tokens = Tokens(
        tokenizer=EngineTokenizer(session, picker.someone) if exact else None,
        renderers={api: EngineTokenizer(session, renderer, path) for api, path in paths.items()},
        media=url is not None,
        local=None if models is None else models.of,
        prefixes=prefixes,
        shows=picker.pool.shows,
        life=picker.pool.endpoints.incarnation,
        spawn=spawn,
        offload=offload,
        clock=clock,
        naming=picker.naming,
    )
    picker.pool.on_first.append(tokens.watch.first_token)
    return tokens
