"""Wait until an engine has nothing left to do for anybody. The preStop hook of its container.

Its sidecar is told first (`/drain`): it says "not ready" to gateways, and through the log to
pickers, so that nothing new comes though the API server were away; gateways may take a moment. The
engine is idle when its sidecar has no exchange in flight, no request runs or waits, and no block of
its cache is in use: a prompt that it computed for another pod keeps its blocks until that pod has
pulled them, or their lease is over. Only then the engine may be told to end. Prints nothing, always
exits 0: the kubelet ends the engine after this, whatever it says.
"""

import argparse
import time
import urllib.parse
import urllib.request

BUSY = {
    "epp_sidecar_in_flight",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
}
"""Gauges that are 0 when there is nothing to wait for. One that is not there counts as 0."""
LOOKS = 2
"""Idle for so many looks in a row."""


def busy(page: str) -> bool:
    """Whether a metrics page shows work. Labels do not matter: any rank's work counts."""
    for line in page.splitlines():
        name, _, value = line.partition(" ") if "{" not in line else _labelled(line)
        if name in BUSY and float(value.split()[0]) > 0:
            return True
    return False


def _labelled(line: str) -> tuple[str, str, str]:
    return line.partition("{")[0], "", line.rpartition("}")[2]


def _page(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:  # noqa: S310 - the hook's own URLs
            return answer.read().decode()
    except (OSError, ValueError):
        return ""  # gone already: nothing to wait for


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--engine", default="http://127.0.0.1:8200/metrics")
    flags.add_argument("--sidecar", default="http://127.0.0.1:9092/metrics")
    flags.add_argument("--least", type=float, default=5, help="seconds, for gateways to notice")
    flags.add_argument("--limit", type=float, default=120, help="seconds")
    flags.add_argument("--pause", type=float, default=0.5, help="seconds between two looks")
    given = flags.parse_args()
    began, idle = time.monotonic(), 0
    _page(urllib.parse.urljoin(given.sidecar, "drain"))  # it goes on though nobody waits for it
    while (waited := time.monotonic() - began) < given.limit:
        idle = 0 if busy(_page(given.sidecar)) or busy(_page(given.engine)) else idle + 1
        if waited >= given.least and idle >= LOOKS:
            return
        time.sleep(given.pause)


if __name__ == "__main__":
    main()
