"""What `/admin/state` tells about an engine and the KV that it hands over.

Pinned blocks that several requests share count for each of them. In any life of an engine
`pinned_requests` is `issued` - `pulled` - `returned` - `expired`.
"""

from dataclasses import asdict

from epp.sim.engine import Engine


def describe(engine: Engine) -> dict[str, object]:
    """Requests and blocks, for JSON."""
    pool = engine.pool
    return {
        "running": engine.running,
        "waiting": engine.waiting,
        "blocks": {
            "total": pool.total,
            "used": pool.used,
            "cached": pool.cached,
            "free": pool.free,
            "indexed": sum(pool.contents().values()),
        },
    }


def describe_transfers(engine: Engine) -> dict[str, object]:
    """Pins and pulls, for JSON."""
    return {
        "dead": engine.dead,
        "pinned_requests": len(engine.pins),
        "pinned_blocks": engine.pins.blocks,
        "pins": asdict(engine.pins.counters),
        "pulls": {
            "before": engine.before_pull,
            "under_way": engine.incoming.pulling,
            "done": engine.counters.pulls,
            "failed": engine.counters.failed_pulls,
            "blocks": engine.counters.pulled_blocks,
            "tokens": engine.counters.pulled_tokens,
        },
        "local_prompt_tokens": engine.counters.computed_prompt_tokens,
    }
