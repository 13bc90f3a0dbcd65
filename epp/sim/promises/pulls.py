"""What engines say about KV that was handed over: vLLM's own counters, which ours have as well."""

import re
from dataclasses import dataclass

import aiohttp

_SAMPLE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{[^}]*\})? (?P<value>\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class KvCounters:
    """Of one engine, since it started. What an engine does not say is 0."""

    transfers: int
    """Pulls by this engine that succeeded."""
    pulled_bytes: int
    failed: int
    expired: int
    """Requests whose blocks this engine kept and nobody pulled in time."""
    late: int
    """Reads of this engine's blocks after that."""
    usage: float
    """Share of this engine's blocks that running or kept requests hold, 0 to 1."""
    waiting: int
    """Requests that wait, for their turn or for their KV."""


def parse(page: str) -> KvCounters:
    """Read a metrics page; values of one name are added up."""
    found: dict[str, float] = {}
    for sample in _SAMPLE.finditer(page):
        name = sample["name"].removeprefix("vllm:")
        found[name] = found.get(name, 0.0) + float(sample["value"])
    return KvCounters(
        transfers=int(found.get("nixl_xfer_time_seconds_count", 0)),
        pulled_bytes=int(found.get("nixl_bytes_transferred_sum", 0)),
        failed=int(found.get("nixl_num_failed_transfers_total", 0)),
        expired=int(found.get("nixl_num_kv_expired_reqs_total", 0)),
        late=int(found.get("nixl_num_notifications_after_expiry_total", 0)),
        usage=found.get("kv_cache_usage_perc", 0.0),
        waiting=int(found.get("num_requests_waiting", 0)),
    )


async def read(session: aiohttp.ClientSession, engine: str) -> KvCounters:
    """Ask an engine by its base URL. Raises aiohttp.ClientError."""
    async with session.get(f"{engine}/metrics") as answer:
        answer.raise_for_status()
        return parse(await answer.text())
