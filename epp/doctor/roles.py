"""Roles, and what prefill and decode pods need of each other. Pure."""

from collections.abc import Iterator
from functools import partial

from epp.framework import Role

from .findings import Finding, Level
from .pools import Engine, Served, pools
from .shape import at, rows, text
from .workloads import Deployed

_role = partial(Finding, check="roles")
_handoff = partial(Finding, check="handoff")
_KV = "--kv-transfer-config"
_HOST = "VLLM_NIXL_SIDE_CHANNEL_HOST"
LEASE_S = 30.0
"""The engines' own, and the sidecars' `--kv-lease`."""


def check_roles(deployed: Deployed) -> Iterator[Finding]:
    """Labels that say who computes what."""
    for pool in pools(deployed):
        known = [one for one in pool.engines if one.role is not None]
        for engine in pool.engines:
            yield from _known(engine)
            yield from _same_part(engine)
        if known and not any(one.role is not None and one.role.serves_decode for one in known):
            yield _role(
                level=Level.ERROR,
                where=pool.where,
                what="no engine answers: all of them only compute prompts or media for others",
                fix="label those that answer llm-d.ai/role: decode, or leave the label out",
            )
        waiting = [one.where for one in known if one.role is Role.DECODE]
        if waiting and not pool.apart:
            yield _role(
                level=Level.WARNING,
                where=pool.where,
                what="engines are labelled decode, but none prefills: they compute every prompt",
                fix="label others llm-d.ai/role: prefill, or leave the label out",
            )


def _known(engine: Engine) -> Iterator[Finding]:
    if engine.role is None:
        names = ", ".join(role.value for role in Role if role.value)
        yield _role(
            level=Level.ERROR,
            where=engine.workload.where,
            what=f"no role is called {engine.role_label!r}: its pods serve whole requests",
            fix=f"llm-d.ai/role is one of {names}",
        )


def _same_part(engine: Engine) -> Iterator[Finding]:
    """A label and the engine's own connector must mean the same part."""
    said = (engine.container.config(_KV) or {}).get("kv_role")
    role = engine.role
    wrong = (role is Role.PREFILL and said == "kv_consumer") or (
        role is Role.DECODE and said == "kv_producer"
    )
    if wrong:
        yield _role(
            level=Level.ERROR,
            where=engine.where,
            what=f"the label says {engine.role_label}, the engine's connector {said}",
            fix="kv_producer prefills, kv_consumer decodes, kv_both does either",
        )


def check_handoff(deployed: Deployed) -> Iterator[Finding]:
    """What has to be there for a prompt to be computed elsewhere."""
    for pool in pools(deployed):
        if not pool.apart:
            continue
        for engine in pool.engines:
            yield from _sidecar(engine)
            if engine.sidecar is not None:
                yield from _trust(pool, engine)
                if engine.sidecar.flags.get("--connector", "nixlv2") == "nixlv2":
                    yield from _nixl(engine)


def _sidecar(engine: Engine) -> Iterator[Finding]:
    if engine.sidecar is None:
        yield _handoff(
            level=Level.ERROR,
            where=engine.workload.where,
            what="it has no container epp-sidecar: nobody hands its prompts over, and requests "
            "with made-up transfer parameters reach the engine",
            fix="put `epp sidecar` before it, as an init container with restartPolicy: Always",
        )


def _trust(pool: Served, engine: Engine) -> Iterator[Finding]:
    sidecar = engine.sidecar
    assert sidecar is not None
    own = sidecar.flags
    at_sidecar = engine.workload.of(sidecar)
    if not {"--handoff-key-file", "--endpoints-file"} & own.keys():
        yield _handoff(
            level=Level.ERROR,
            where=at_sidecar,
            what="it does not know who belongs to the pool, so it hands nothing over",
            fix="--handoff-key-file, with the pickers' key",
        )
    if not {"--leg-key-file", "--leg-port"} & own.keys():
        yield _handoff(
            level=Level.ERROR,
            where=at_sidecar,
            what="it has no way to prove its legs, so it neither sends nor takes any",
            fix="--leg-key-file, with one key for all sidecars of the pool",
        )
    picker = pool.picker
    if picker is None or "--handoff-key-file" not in own:
        return
    if "--handoff-key-file" not in picker.flags:
        yield _handoff(
            level=Level.ERROR,
            where=picker.where,
            what="sidecars believe sealed lists only, and it has no key to seal them",
            fix="--handoff-key-file, with the sidecars' key",
        )


def _nixl(engine: Engine) -> Iterator[Finding]:
    given = engine.container.config(_KV)
    if not given:
        what = "is no JSON" if given is None else "is missing: it hands no KV over"
        yield _handoff(
            level=Level.ERROR,
            where=engine.where,
            what=f"{_KV} {what}",
            fix=_KV + '={"kv_connector": "NixlConnector", "kv_role": "kv_both"}',
        )
        return
    if "engine_id" in given:
        yield _handoff(
            level=Level.ERROR,
            where=engine.where,
            what="it is started with an engine_id: after a restart all its handoffs fail",
            fix=f"leave engine_id out of {_KV}",
        )
    if given.get("kv_load_failure_policy", "fail") != "fail":
        yield _handoff(
            level=Level.WARNING,
            where=engine.where,
            what="a failed pull is computed again by the engine, unseen by its sidecar",
            fix='"kv_load_failure_policy": "fail"; the sidecar repeats where that is safe',
        )
    yield from _address(engine)
    yield from _lease(engine, at(given, "kv_connector_extra_config", "kv_lease_duration"))


def _address(engine: Engine) -> Iterator[Finding]:
    host = engine.container.environment.get(_HOST)
    secret = any(text(one, "name") == _HOST for one in rows(engine.container.raw, "env"))
    if host in {None, "", "127.0.0.1", "localhost", "0.0.0.0"} and not (secret and host is None):  # noqa: S104 - compared
        yield _handoff(
            level=Level.ERROR,
            where=engine.where,
            what=f"{_HOST} is {host or 'not set'}: other pods would look for its KV at home",
            fix=f"{_HOST} from the pod's field status.podIP",
        )


def _lease(engine: Engine, said: object) -> Iterator[Finding]:
    sidecar = engine.sidecar
    assert sidecar is not None
    own = float(said) if isinstance(said, int | float) else LEASE_S
    try:
        believed = float(sidecar.flags.get("--kv-lease", "") or LEASE_S)
    except ValueError:
        return
    if believed > own:
        yield _handoff(
            level=Level.ERROR,
            where=engine.workload.of(sidecar),
            what=f"it believes in a lease of {believed:g} s, the engine keeps blocks for "
            f"{own:g} s: a late pull would answer with another prompt's",
            fix=f"--kv-lease={own:g}",
        )
