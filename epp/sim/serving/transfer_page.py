"""Metrics about KV that is handed over: vLLM's names with a NIXL connector, and our own.

Ours (`sim:`) count what a test wants to be sure of: that no lease ended, that nothing was pulled
twice or from nowhere, and that a decode engine computed no prompt itself.
"""

from collections.abc import Iterable

from epp.sim.engine import Engine
from epp.sim.serving.families import Family, Labels, counter, gauge, totals
from epp.sim.settings import EngineSettings


def transfer_families(engine: Engine, settings: EngineSettings, labels: Labels) -> Iterable[Family]:
    """Families that only an engine with a KV role has."""
    yield from _nixl(engine, settings, labels)
    yield from _own(engine, labels)


def _nixl(engine: Engine, settings: EngineSettings, labels: Labels) -> Iterable[Family]:
    count, pins = engine.counters, engine.pins.counters
    size = settings.block_tokens * settings.kv_bytes_per_token

    def total(name: str, text: str, value: float) -> Family:
        return counter(f"vllm:{name}", text, labels, value)

    def histogram(name: str, text: str, value: float) -> Family:
        return totals(f"vllm:{name}", text, labels, count=count.pulls, total=value)

    yield histogram("nixl_xfer_time_seconds", "Duration of transfers.", count.pull_seconds)
    yield histogram(
        "nixl_bytes_transferred", "Bytes of transfers.", float(count.pulled_blocks * size)
    )
    yield total("nixl_num_failed_transfers_total", "Transfers that failed.", count.failed_pulls)
    yield total("nixl_num_kv_expired_reqs_total", "Requests whose lease ended.", pins.expired)
    yield total(
        "nixl_num_notifications_after_expiry_total",
        "Reads of requests that were not pinned any more.",
        pins.after_end,
    )
    stages = {
        "waiting_to_start": engine.before_pull,
        "in_progress": len(engine.incoming.loading),
        "completed_waiting": len(engine.incoming.loaded),
    }
    yield Family(
        "vllm:num_requests_kv_fetch_by_stage",
        "gauge",
        "Requests that wait for their KV, by stage.",
        tuple(({**labels, "stage": stage}, value) for stage, value in stages.items()),
    )
    yield total(
        "external_prefix_cache_queries_total", "Tokens asked of other engines.", count.pulled_tokens
    )
    yield total("external_prefix_cache_hits_total", "Tokens pulled.", count.pulled_tokens)


def _own(engine: Engine, labels: Labels) -> Iterable[Family]:
    count, pins = engine.counters, engine.pins.counters
    yield gauge("sim:kv_pinned_blocks", "Blocks kept for a pull.", labels, engine.pins.blocks)
    numbers = {
        "kv_pins_issued": ("Requests whose blocks were pinned.", pins.issued),
        "kv_pull": ("Pinned requests that were pulled from here.", pins.pulled),
        "kv_returned": ("Pinned requests that were handed back unread.", pins.returned),
        "kv_lease_expired": ("Pinned requests that nobody pulled in time.", pins.expired),
        "kv_pull_late": ("Pulls from here after the lease.", pins.late),
        "kv_params_reused": ("Pulls from here of what was pulled before.", pins.reused),
        "kv_pull_unknown": ("Pulls from here of what never was offered.", pins.unknown),
        "prefill_local_tokens": ("Prompt tokens computed here.", count.computed_prompt_tokens),
    }
    for name, (text, value) in numbers.items():
        yield counter(f"sim:{name}_total", text, labels, value)
