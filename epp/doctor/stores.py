"""Whether pickers and sidecars meet at the pool's log, and name blocks alike. Pure."""

from collections.abc import Iterator
from functools import partial

from .findings import Finding, Level
from .pools import Engine, Picker, pickers, pools
from .workloads import Deployed

_found = partial(Finding, check="store")
_DEFAULT_STATE = "tcp://127.0.0.1:9004"
_SAME = (
    ("--redis-streams", "--state-streams", "1"),
    ("--cache-namespace", "--cache-namespace", ""),
)


def check_store(deployed: Deployed) -> Iterator[Finding]:
    """One log for all, and one way to name blocks."""
    for picker in pickers(deployed):
        store = picker.flags.get("--store", "memory")
        if store == "memory" and picker.workload.replicas > 1:
            yield _found(
                level=Level.ERROR,
                where=picker.where,
                what=f"{picker.workload.replicas} replicas, and each would know only what its own "
                "sidecars tell it",
                fix="--store=redis with --redis-url, or one replica",
            )
    for pool in pools(deployed):
        for engine in pool.engines:
            if pool.picker is not None and engine.sidecar is not None:
                yield from _meet(pool.picker, engine)
                yield from _alike(pool.picker, engine)


def _meet(picker: Picker, engine: Engine) -> Iterator[Finding]:
    assert engine.sidecar is not None
    url = engine.sidecar.flags.get("--state-url") or engine.sidecar.environment.get("EPP_STATE_URL")
    streams = (url or _DEFAULT_STATE).startswith("tcp://")
    store = picker.flags.get("--store", "memory")
    if streams != (store == "memory"):
        yield _found(
            level=Level.ERROR,
            where=engine.workload.of(engine.sidecar),
            what=f"it writes to {'the picker itself' if streams else 'Redis'}, the picker reads "
            f"--store={store}",
            fix="--state-url=redis://…, the pickers' Redis"
            if streams
            else "--store=redis at the pickers",
        )


def _alike(picker: Picker, engine: Engine) -> Iterator[Finding]:
    assert engine.sidecar is not None
    ours, theirs = picker.flags, engine.sidecar.flags
    where = engine.workload.of(engine.sidecar)
    for at_picker, at_sidecar, default in _SAME:
        said, wanted = theirs.get(at_sidecar, default), ours.get(at_picker, default)
        if said != wanted:
            yield _found(
                level=Level.ERROR,
                where=where,
                what=f"{at_sidecar} is {said or 'not set'}, the picker's {at_picker} "
                f"{wanted or 'not set'}",
                fix="the same on both sides",
            )
    if ("--salt-key-file" in ours) != ("--salt-key-file" in theirs):
        yield _found(
            level=Level.ERROR,
            where=where,
            what="only one side has the key of cache salts: prompts with a salt never match",
            fix="--salt-key-file, the same file for pickers and sidecars",
        )
