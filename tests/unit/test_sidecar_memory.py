"""What a sidecar loads: one stands beside every engine, and each library is paid as often."""

import subprocess
import sys

MOST_MB = 60
_PROBE = """
import sys
import epp.cli, sidecar.app, sidecar.relay.server, sidecar.relay.pool, epp.observe.logs, uvloop
with open("/proc/self/status", encoding="ascii") as status:
    print(next(line.split()[1] for line in status if line.startswith("VmRSS:")))
print(" ".join(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def test_a_sidecar_loads_no_library_that_only_others_need_and_stays_small() -> None:
    done = subprocess.run(
        (sys.executable, "-c", _PROBE), check=True, capture_output=True, text=True
    )
    rss_kb, names = done.stdout.splitlines()
    loaded = set(names.split())
    assert not loaded & {"aiohttp", "numpy", "redis", "grpc", "jinja2", "tokenizers", "h2"}
    assert int(rss_kb) <= MOST_MB * 1024
