"""Engines of one pool: whether they are alike, and whether they tell what they hold. Pure."""

from collections.abc import Callable, Iterator
from functools import partial

from epp.control.kube.objects import KV_EVENTS_PORT

from .findings import Finding, Level
from .pools import Engine, Served, address, number, pools
from .workloads import Container, Deployed

_alike = partial(Finding, check="block-size")
_events = partial(Finding, check="events")
_usage = partial(Finding, check="usage")
_EVENTS = "--kv-events-config"


def check_block_size(deployed: Deployed) -> Iterator[Finding]:
    """What must agree for KV of one engine to mean the same at another."""
    for pool in pools(deployed):
        engines = [one for one in pool.engines if one.kind == "vllm" and one.container.name]
        for what, of in _MUST_AGREE.items():
            found = {one.where: of(one.container) for one in engines}
            if len(set(found.values())) > 1:
                said = "; ".join(f"{value or 'not set'} at {at}" for at, value in found.items())
                yield _alike(
                    level=Level.ERROR if pool.apart else Level.WARNING,
                    where=pool.where,
                    what=f"its engines differ in {what}: {said}",
                    fix=f"one {what} in a pool; for another one make another pool",
                )


def _model(container: Container) -> str:
    words = container.words
    if "--model" in container.flags:
        return container.flags["--model"]
    after = words[words.index("serve") + 1 :] if "serve" in words else ()
    return next((word for word in after if not word.startswith("-")), "")


def _flag(*names: str) -> Callable[[Container], str]:
    return lambda container: next(
        (container.flags[name] for name in names if name in container.flags), ""
    )


_MUST_AGREE: dict[str, Callable[[Container], str]] = {
    "block size": _flag("--block-size"),
    "data type of the cache": _flag("--kv-cache-dtype"),
    "model": _model,
    "image": lambda container: container.image,
}


def check_events(deployed: Deployed) -> Iterator[Finding]:
    """What engines hold is known exactly only where they say it."""
    for pool in pools(deployed):
        for engine in pool.engines:
            if engine.kind == "vllm" and engine.container.name:
                yield from _cached(engine)
                yield from _told(pool, engine)


def _cached(engine: Engine) -> Iterator[Finding]:
    if engine.container.on("enable-prefix-caching") is False:
        yield _events(
            level=Level.ERROR,
            where=engine.where,
            what="prefix caching is off: no prompt is ever found cached",
            fix="--enable-prefix-caching",
        )


def _told(pool: Served, engine: Engine) -> Iterator[Finding]:
    given = engine.container.config(_EVENTS)
    if given is None:
        yield _events(
            level=Level.ERROR,
            where=engine.where,
            what=f"{_EVENTS} is no JSON",
            fix="one line, in quotes",
        )
        return
    said = given.get("enable_kv_cache_events")
    on = str(said).lower() == "true" and given.get("publisher") != "null"
    if not on:
        yield _events(
            level=Level.WARNING,
            where=engine.where,
            what="it publishes no KV events: its cache is only predicted",
            fix=_EVENTS + '={"enable_kv_cache_events": true, "publisher": "zmq", …}',
        )
    elif engine.sidecar is not None:
        yield from _at_sidecar(engine, engine.sidecar, given)
    else:
        yield from _at_picker(pool, engine, given)


def _at_sidecar(engine: Engine, sidecar: Container, given: dict[str, object]) -> Iterator[Finding]:
    where = engine.workload.of(sidecar)
    endpoint = str(given.get("endpoint") or "tcp://*:5557")
    heard = sidecar.flags.get("--kv-events")
    if heard is None:
        yield _events(
            level=Level.WARNING,
            where=where,
            what="its engine publishes KV events, and it does not listen",
            fix=f"--kv-events={endpoint.replace('*', '127.0.0.1')}",
        )
        return
    if _place(heard) != _place(endpoint):
        yield _events(
            level=Level.ERROR,
            where=where,
            what=f"it listens at {heard}, its engine publishes at {endpoint}",
            fix="the same port on both sides",
        )
    binds = "*" in endpoint or "::" in endpoint or not endpoint.startswith("tcp://")
    if binds == bool(sidecar.on("kv-events-bind")):
        who = "both bind" if binds else "both connect to"
        yield _events(
            level=Level.ERROR,
            where=where,
            what=f"{who} {endpoint}: an address without a wildcard is one that vLLM connects to",
            fix="leave --kv-events-bind out" if binds else "--kv-events-bind",
        )
    yield from _again(where, sidecar.flags.get("--kv-replay"), given)


def _again(where: str, asked: str | None, given: dict[str, object]) -> Iterator[Finding]:
    offered = given.get("replay_endpoint")
    if not asked or not offered:
        yield _events(
            level=Level.WARNING,
            where=where,
            what="events that are lost cannot be said again: what the engine holds is forgotten",
            fix="a replay_endpoint of the engine, and the sidecar's --kv-replay",
        )
    elif _place(asked) != _place(str(offered)):
        yield _events(
            level=Level.ERROR,
            where=where,
            what=f"it asks {asked} for lost events, its engine answers at {offered}",
            fix="the same port on both sides",
        )


def _at_picker(pool: Served, engine: Engine, given: dict[str, object]) -> Iterator[Finding]:
    host, published = address(str(given.get("endpoint") or "tcp://*:5557"))
    said = engine.workload.annotations.get(KV_EVENTS_PORT)
    if said is None and pool.picker is not None:
        said = pool.picker.flags.get("--kv-events-port")
    port = number(said or "", 0)
    if not port:
        yield _events(
            level=Level.WARNING,
            where=engine.where,
            what="it publishes KV events, and no picker is told where",
            fix=f"annotation {KV_EVENTS_PORT}, or --kv-events-port of the pickers",
        )
    elif port != published:
        yield _events(
            level=Level.ERROR,
            where=engine.where,
            what=f"pickers look for its KV events at port {port}, it publishes at {published}",
            fix="the same port on both sides",
        )
    elif host in {"127.0.0.1", "localhost"}:
        yield _events(
            level=Level.ERROR,
            where=engine.where,
            what="it publishes KV events on loopback, where no picker reaches them",
            fix=f'"endpoint": "tcp://*:{port}"',
        )


def _place(endpoint: str) -> str:
    """The port, or the path of a socket."""
    return endpoint.rpartition(":")[2] if endpoint.startswith("tcp://") else endpoint


def check_usage(deployed: Deployed) -> Iterator[Finding]:
    """What load and predictions are checked against."""
    for pool in pools(deployed):
        for engine in pool.engines:
            if engine.container.name:
                yield from _counted(engine)
            if engine.sidecar is not None and engine.sidecar.on("request-usage") is False:
                yield _usage(
                    level=Level.NOTE,
                    where=engine.workload.of(engine.sidecar),
                    what="tokens of streams whose clients do not ask for usage are not known",
                    fix="leave --no-request-usage out",
                )


def _counted(engine: Engine) -> Iterator[Finding]:
    details, page = _SHOWN.get(engine.kind, ("", ""))
    if details and not engine.container.on(details):
        yield _usage(
            level=Level.WARNING,
            where=engine.where,
            what="its usage does not say how much of a prompt was cached: predictions are never "
            "checked",
            fix=f"--{details}",
        )
    blind = engine.container.on("disable-log-stats") is True or (
        bool(page) and not engine.container.on(page)
    )
    if blind:
        yield _usage(
            level=Level.ERROR,
            where=engine.where,
            what="its metrics page is empty: its load is not known",
            fix=f"--{page}" if page else "leave --disable-log-stats out",
        )


_SHOWN = {
    "vllm": ("enable-prompt-tokens-details", ""),
    "sglang": ("enable-cache-report", "enable-metrics"),
}
"""By kind of engine: the flag that tells cached tokens, and the one that turns metrics on."""
