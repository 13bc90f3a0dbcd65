"""What `/admin/state` tells about the handover of KV: counts that have no place in vLLM's metrics.

Pinned blocks that several requests share count for each of them. In any life of an engine
`pinned_requests` is `issued` - `pulled` - `returned` - `expired`.
"""

from dataclasses import asdict

from epp.sim.engine import Engine


def describe(engine: Engine) -> dict[str, object]:
    """Names and numbers for JSON."""
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
