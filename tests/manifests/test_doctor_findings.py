"""The doctor finds each fault that somebody puts into what we ship."""

from collections.abc import Callable
from typing import Any

import pytest

from epp.control.kube.objects import SIDECAR
from epp.doctor.examine import checks
from epp.doctor.findings import Level
from tests.manifests.broken import (
    NOW,
    World,
    drop_stripping,
    labelled,
    more_rights,
    same_selector,
    scaled,
    strip_late,
    strip_less,
    telling,
    transferring,
    two_scalers,
    unsaid,
    without_sidecar,
)

Break = Callable[[World], Any]


BROKEN: list[tuple[str, Level, str, Break]] = [
    (
        "labels",
        Level.ERROR,
        "no pod template",
        lambda w: w.get("InferencePool")["spec"].update(selector={"matchLabels": {"app": "other"}}),
    ),
    (
        "labels",
        Level.ERROR,
        "cannot be used",
        lambda w: w.get("InferencePool")["spec"].update(selector={}),
    ),
    (
        "labels",
        Level.ERROR,
        "never be ready",
        lambda w: w.swap("epp", "epp", "--pool-name", "other"),
    ),
    (
        "labels",
        Level.ERROR,
        "no picker reads",
        lambda w: w.swap("decode", SIDECAR, "--pool-name", "other"),
    ),
    ("labels", Level.ERROR, "which is not in namespace", lambda w: w.remove("Service", "epp")),
    (
        "labels",
        Level.NOTE,
        "another picker",
        lambda w: w.get("Service", "epp")["spec"].update(selector={"app": "no"}),
    ),
    (
        "labels",
        Level.WARNING,
        "any pod gets requests",
        lambda w: w.get("InferencePool")["spec"]["endpointPickerRef"].update(
            failureMode="FailOpen"
        ),
    ),
    (
        "ports",
        Level.ERROR,
        "sends requests to port 8080",
        lambda w: w.get("InferencePool")["spec"].update(targetPorts=[{"number": 8080}]),
    ),
    (
        "ports",
        Level.ERROR,
        "looks for its engine",
        lambda w: w.swap("decode", SIDECAR, "--engine-url", "http://127.0.0.1:8201"),
    ),
    (
        "ports",
        Level.ERROR,
        "listens for more",
        lambda w: w.swap("decode", "vllm", "--host", "0.0.0.0"),
    ),
    (
        "ports",
        Level.ERROR,
        "has no port 9002",
        lambda w: w.get("Service", "epp")["spec"]["ports"].pop(0),
    ),
    (
        "ports",
        Level.ERROR,
        "leads to 9090",
        lambda w: w.get("Service", "epp")["spec"]["ports"][0].update(targetPort="metrics"),
    ),
    (
        "ports",
        Level.WARNING,
        "appProtocol",
        lambda w: w.get("Service", "epp")["spec"]["ports"][0].pop("appProtocol"),
    ),
    (
        "ports",
        Level.ERROR,
        "port 9002, where gateways",
        lambda w: w.remove("NetworkPolicy", "gateway-to-epp"),
    ),
    (
        "roles",
        Level.ERROR,
        "no role is called 'decoder'",
        lambda w: labelled(w, "decode", "llm-d.ai/role", "decoder"),
    ),
    (
        "roles",
        Level.ERROR,
        "no engine answers",
        lambda w: labelled(w, "decode", "llm-d.ai/role", "prefill"),
    ),
    (
        "roles",
        Level.WARNING,
        "none prefills",
        lambda w: labelled(w, "prefill", "llm-d.ai/role", "decode"),
    ),
    (
        "roles",
        Level.ERROR,
        "connector kv_producer",
        lambda w: transferring(w, "decode", kv_role="kv_producer"),
    ),
    ("handoff", Level.ERROR, "no container epp-sidecar", without_sidecar),
    (
        "handoff",
        Level.ERROR,
        "who belongs",
        lambda w: w.swap("decode", SIDECAR, "--handoff-key-file", None),
    ),
    (
        "handoff",
        Level.ERROR,
        "prove its legs",
        lambda w: w.swap("decode", SIDECAR, "--leg-key-file", None),
    ),
    (
        "handoff",
        Level.ERROR,
        "no key to seal",
        lambda w: w.swap("epp", "epp", "--handoff-key-file", None),
    ),
    (
        "handoff",
        Level.ERROR,
        "is missing",
        lambda w: w.swap("decode", "vllm", "--kv-transfer-config", None),
    ),
    (
        "handoff",
        Level.ERROR,
        "is no JSON",
        lambda w: w.swap("decode", "vllm", "--kv-transfer-config", "{x"),
    ),
    ("handoff", Level.ERROR, "engine_id", lambda w: transferring(w, "prefill", engine_id="one")),
    (
        "handoff",
        Level.WARNING,
        "failed pull",
        lambda w: transferring(w, "prefill", kv_load_failure_policy="recompute"),
    ),
    (
        "handoff",
        Level.ERROR,
        "VLLM_NIXL_SIDE_CHANNEL_HOST is not set",
        lambda w: unsaid(w, "prefill", "VLLM_NIXL_SIDE_CHANNEL_HOST"),
    ),
    (
        "handoff",
        Level.ERROR,
        "lease of 60 s",
        lambda w: w.swap("decode", SIDECAR, "--kv-lease", "60"),
    ),
    (
        "block-size",
        Level.ERROR,
        "differ in block size",
        lambda w: w.swap("decode", "vllm", "--block-size", "32"),
    ),
    (
        "block-size",
        Level.ERROR,
        "differ in data type",
        lambda w: w.swap("decode", "vllm", "--kv_cache_dtype", "fp8"),
    ),
    (
        "block-size",
        Level.ERROR,
        "differ in image",
        lambda w: w.container("decode", "vllm").update(image="vllm/vllm-openai:v0.31.0"),
    ),
    (
        "block-size",
        Level.ERROR,
        "differ in model",
        lambda w: w.swap("decode", "vllm", "--model", "other"),
    ),
    (
        "events",
        Level.ERROR,
        "prefix caching is off",
        lambda w: w.swap("decode", "vllm", "--no-enable-prefix-caching", ""),
    ),
    (
        "events",
        Level.WARNING,
        "publishes no KV events",
        lambda w: w.swap("decode", "vllm", "--kv-events-config", None),
    ),
    (
        "events",
        Level.ERROR,
        "is no JSON",
        lambda w: w.swap("decode", "vllm", "--kv-events-config", "[1]"),
    ),
    (
        "events",
        Level.WARNING,
        "does not listen",
        lambda w: w.swap("decode", SIDECAR, "--kv-events", None),
    ),
    (
        "events",
        Level.ERROR,
        "it listens at",
        lambda w: telling(w, "decode", endpoint="tcp://127.0.0.1:5559"),
    ),
    ("events", Level.ERROR, "both bind", lambda w: telling(w, "decode", endpoint="tcp://*:5557")),
    (
        "events",
        Level.ERROR,
        "both connect",
        lambda w: w.swap("decode", SIDECAR, "--kv-events-bind", None),
    ),
    (
        "events",
        Level.WARNING,
        "said again",
        lambda w: w.swap("decode", SIDECAR, "--kv-replay", None),
    ),
    (
        "events",
        Level.ERROR,
        "for lost events",
        lambda w: telling(w, "decode", replay_endpoint="tcp://127.0.0.1:5559"),
    ),
    (
        "usage",
        Level.WARNING,
        "how much of a prompt",
        lambda w: w.swap("decode", "vllm", "--enable-prompt-tokens-details", None),
    ),
    (
        "usage",
        Level.ERROR,
        "metrics page is empty",
        lambda w: w.swap("decode", "vllm", "--disable-log-stats", ""),
    ),
    (
        "usage",
        Level.ERROR,
        "metrics page is empty",
        lambda w: labelled(w, "decode", "llm-d.ai/engine-type", "sglang"),
    ),
    (
        "usage",
        Level.NOTE,
        "do not ask for usage",
        lambda w: w.swap("decode", SIDECAR, "--no-request-usage", ""),
    ),
    ("headers", Level.ERROR, "x-epp-leg", drop_stripping),
    ("headers", Level.ERROR, "x-conformance-test-served-endpoint", strip_less),
    ("headers", Level.ERROR, "the destination is lost", strip_late),
    (
        "certificate",
        Level.ERROR,
        "verifies",
        lambda w: w.get("DestinationRule")["spec"]["trafficPolicy"]["tls"].pop(
            "insecureSkipVerify"
        ),
    ),
    (
        "certificate",
        Level.ERROR,
        "the other one does not",
        lambda w: w.swap("epp", "epp", "--secure-serving", "false"),
    ),
    (
        "certificate",
        Level.ERROR,
        "verifies",
        lambda w: w.add(
            "gateway.networking.k8s.io/v1",
            "BackendTLSPolicy",
            "epp",
            {"targetRefs": [{"kind": "Service", "name": "epp"}]},
        ),
    ),
    (
        "certificate",
        Level.ERROR,
        "nothing is mounted",
        lambda w: w.swap("epp", "epp", "--cert-path", "/certs"),
    ),
    (
        "certificate",
        Level.WARNING,
        "next start only",
        lambda w: w.swap("epp", "epp", "--cert-path", "/keys"),
    ),
    (
        "rbac",
        Level.ERROR,
        "may not list and watch pods",
        lambda w: w.get("Role", "epp")["rules"].pop(0),
    ),
    (
        "rbac",
        Level.ERROR,
        "may not watch inferencepools",
        lambda w: w.get("Role", "epp")["rules"][1].update(verbs=["list"]),
    ),
    ("rbac", Level.WARNING, "inferenceobjectives", lambda w: w.get("Role", "epp")["rules"].pop()),
    ("rbac", Level.ERROR, "may not list", lambda w: w.remove("RoleBinding", "epp")),
    ("rbac", Level.WARNING, "get secrets", more_rights),
    (
        "rbac",
        Level.ERROR,
        "not mounted",
        lambda w: w.template("epp")["spec"].update(automountServiceAccountToken=False),
    ),
    ("store", Level.ERROR, "2 replicas", lambda w: w.swap("epp", "epp", "--store", "memory")),
    (
        "store",
        Level.ERROR,
        "the picker itself",
        lambda w: w.swap("decode", SIDECAR, "--state-url", "tcp://epp:9004"),
    ),
    (
        "store",
        Level.ERROR,
        "--state-streams",
        lambda w: w.swap("epp", "epp", "--redis-streams", "4"),
    ),
    (
        "store",
        Level.ERROR,
        "cache salts",
        lambda w: w.swap("decode", SIDECAR, "--salt-key-file", None),
    ),
    ("owners", Level.ERROR, "2 owners", two_scalers),
    (
        "owners",
        Level.WARNING,
        "sets its replicas back",
        lambda w: scaled(w, "ScaledObject", "one"),
    ),
    (
        "owners",
        Level.ERROR,
        "which is not there",
        lambda w: w.add(
            "autoscaling/v2",
            "HorizontalPodAutoscaler",
            "x",
            {"scaleTargetRef": {"kind": "Deployment", "name": "no"}},
        ),
    ),
    ("owners", Level.ERROR, "select the same pods", same_selector),
]


@pytest.mark.parametrize(
    ("check", "level", "word", "broken"), BROKEN, ids=[f"{one[0]}: {one[2]}" for one in BROKEN]
)
def test_a_fault_is_found(check: str, level: Level, word: str, broken: Break) -> None:
    world = World("istio")
    broken(world)
    found = world.found()
    (one, *_) = [each for each in found if each.check == check and word in each.what]
    assert one.level is level
    assert one.fix


def test_each_check_has_a_fault_that_it_finds() -> None:
    assert {check for check, *_ in BROKEN} == checks(NOW).keys()
