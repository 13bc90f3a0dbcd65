"""Whether images, audio and video are computed by others, by whom, and who hears of it."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest
import structlog

from epp import protocol
from epp.framework import Endpoint, Load, Match, Request, Role, Source
from epp.observe.alarm import QUIET_S, SplitAlarm
from epp.observe.explain_text import text
from epp.request.plan.live import Built, build
from epp.request.plan.resolve import resolve
from epp.request.split import Part, Why, encode
from tests.fakes.desk import open_desk
from tests.fakes.plans import Booth, Fixed, profile, with_profile
from tests.fakes.watched import watched
from tests.unit.test_observe import page
from tests.unit.test_split import chosen, decide, pod

D, P, E = Role.DECODE, Role.PREFILL, Role.ENCODE

CONFIG = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
  - type: decode-filter
  - type: prefill-filter
  - type: encode-filter
  - type: queue-scorer
  - type: mm-embeddings-cache-scorer
  - type: max-score-picker
  - type: max-score-picker
    name: encoders
    parameters: {maxNumOfEndpoints: 2}
  - type: always-disagg-pd-decider
  - type: always-disagg-multimodal-decider
  - type: disagg-profile-handler
    parameters:
      deciders: {prefill: always-disagg-pd-decider, encode: always-disagg-multimodal-decider}
schedulingProfiles:
  - name: decode
    plugins:
      - {pluginRef: decode-filter}
      - {pluginRef: queue-scorer}
      - {pluginRef: max-score-picker}
  - name: prefill
    plugins:
      - {pluginRef: prefill-filter}
      - {pluginRef: queue-scorer}
      - {pluginRef: max-score-picker}
  - name: encode
    plugins:
      - {pluginRef: encode-filter}
      - {pluginRef: mm-embeddings-cache-scorer, weight: 2}
      - {pluginRef: queue-scorer}
      - {pluginRef: encoders}
"""


def built() -> Built:
    return build(resolve(CONFIG.encode(), "encode.yaml"))


BUILT = built()
SEEN = Request(
    id="r",
    api="chat",
    path="/v1/chat/completions",
    prompt_tokens=1000,
    media_tokens=600,
    media=((1, 2**20),),
    whole="",
)


def part(*eligible: Endpoint, **given: Any) -> Part:
    return decide(*eligible, stage=encode, **{"built": BUILT, "request": SEEN, **given})


def chat(*images: str) -> dict[str, Any]:
    content: list[Any] = [{"type": "image_url", "image_url": {"url": one}} for one in images]
    content.append({"type": "text", "text": "What is this?"})
    return {"model": "m", "messages": [{"role": "user", "content": content}]}


async def ask(desk: Any, *images: str, path: str = "/v1/chat/completions") -> Any:
    return await desk.route(msgspec.json.encode(chat(*images)), path=path)


def encoders(route: Any) -> list[str]:
    value = dict(route.set_headers).get(protocol.ENCODERS, "")
    return [one for one in value.split(",") if one]


def test_those_with_the_role_encode_in_turns_the_least_busy_first() -> None:
    found = part(
        pod(1, E, load=Load(waiting=9)),
        pod(2, D),
        pod(3, P),
        pod(4, Role.ENCODE_PREFILL),
        pod(5, E),
    )
    assert found.why == Why.SPLIT
    assert sorted(chosen(found)) == ["pod-4", "pod-5"]
    (reason,) = found.reasons
    assert reason.startswith("media of 600 tokens elsewhere; encode: ")


def test_who_holds_the_media_comes_first() -> None:
    held = {pod(1).id: 2**20}
    found = part(pod(1, E), pod(2, E), request=replace(SEEN, media_held=held))
    assert chosen(found)[0] == "pod-1"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"request": replace(SEEN, media_tokens=0)}, "no-media"),
        ({"normal": False}, "mode"),
        ({"destination": pod(0, D, has_sidecar=False)}, "no-sidecar"),
        ({"request": replace(SEEN, whole="n")}, "split"),
        ({"request": replace(SEEN, scored=False)}, "split"),
    ],
)
def test_each_reason_has_its_word(given: dict[str, Any], why: str) -> None:
    assert part(pod(1, E), **given).why == why


def test_nobody_encodes_for_itself_and_nobody_else_means_nobody() -> None:
    alone = part(pod(0, Role.ENCODE_PREFILL_DECODE), pod(1, P))
    assert (alone.why, alone.selection) == ("no-encode-pods", None)
    assert alone.left is not None
    assert [why for why, _, _ in alone.left.excluded(9)] == ["destination", "encode-filter"]


def test_a_profile_without_filters_keeps_to_the_role() -> None:
    bare = with_profile(BUILT, "encode", profile(("any", Fixed(rest=0.5), 1.0)))
    assert chosen(part(pod(1, D), pod(2, E), pod(3, P), built=bare)) == ["pod-2"]
    none = part(pod(1, D), pod(3, P), built=bare)
    assert (none.why, none.selection) == ("no-encode-pods", None)
    assert none.left is not None
    assert none.left.excluded(9) == [("role", 2, ("10.0.0.1:8000", "10.0.0.3:8000"))]


def test_a_decider_that_raises_costs_the_stage_alone() -> None:
    class Raises:
        def decide(self, *_: object) -> str:
            raise KeyError

    booth = Booth()
    name = "always-disagg-multimodal-decider"
    broken = replace(BUILT, deciders={**BUILT.deciders, name: Raises()})
    assert part(pod(1, E), built=broken, booth=booth).why == "failed"
    assert booth.failures == [(name, "raised")]


async def test_the_sidecar_is_told_who_encodes_and_who_prefills() -> None:
    async with open_desk(roles=[D, P, E, E], built=built()) as desk:
        route = await ask(desk, "http://a/1.png", "http://a/2.png")
        decision = desk.witness.last
        plain = await ask(desk)
        assert desk.witness.last.encoding.why == "no-media"
    assert sorted(encoders(route)) == ["10.0.0.2:8000", "10.0.0.3:8000"]
    assert [one.address for one in decision.encode] == encoders(route)
    assert dict(route.set_headers)[protocol.PREFILLER] == "10.0.0.1:8000"
    assert decision.encoding.decider == "always-disagg-multimodal-decider"
    assert decision.reasons[-1].startswith("media of ")
    assert protocol.ENCODERS not in dict(plain.set_headers)


async def test_an_image_goes_where_it_was_encoded_before() -> None:
    async with open_desk(roles=[D, E, E], built=built()) as desk:
        first = encoders(await ask(desk, "http://a/1.png"))
        for _ in range(10):
            assert encoders(await ask(desk, "http://a/1.png"))[0] == first[0]


async def test_a_stage_that_fails_costs_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise KeyError

    async with open_desk(roles=[D, P, E], built=built()) as desk:
        monkeypatch.setattr("epp.request.choice.split.encode", fail)
        route = await ask(desk, "http://a/1.png")
        decision = desk.witness.last
        assert desk.witness.failures == ["encode"]
    assert (decision.encoding.why, decision.encode, decision.split) == ("failed", (), "split")
    assert protocol.PREFILLER in dict(route.set_headers)


async def test_shadow_tells_nobody() -> None:
    async with open_desk(roles=[D, E], built=built()) as desk:
        desk.switch.switch("shadow")
        route = await ask(desk, "http://a/1.png")
        assert desk.witness.last.encoding.why == "split"
    assert encoders(route) == []


async def test_stages_are_counted_by_reason_and_by_the_references_parts() -> None:
    async with watched(roles=[D, P, E], built=built()) as (desk, metrics, explain):
        await ask(desk, "http://a/1.png")
        await ask(desk)
        desk.pool.replace(desk.members[:1] + desk.members[2:], desk.now)
        await ask(desk, "http://a/2.png")
        samples = page(desk, metrics)
        told = text(explain.last()[0], 0.0)
    reasons = "epp_encode_decisions_total"
    assert samples[reasons + '{reason="split"}'] == 2
    assert samples[reasons + '{reason="no-media"}'] == 1
    kinds = {
        kind: next((samples[key] for key in samples if f'decision_type="{kind}"' in key), 0)
        for kind in ("decode-only", "prefill-decode", "encode-decode", "encode-prefill-decode")
    }
    assert kinds == {
        "decode-only": 0,
        "prefill-decode": 1,
        "encode-decode": 1,
        "encode-prefill-decode": 1,
    }
    assert "encode        split; decider always-disagg-multimodal-decider" in told
    assert "10.0.0.2:8000 (pool|pod-2|8000); profile encode" in told


async def test_without_the_stage_nothing_is_counted_or_told() -> None:
    async with watched(roles=[D, E]) as (desk, metrics, explain):
        await ask(desk, "http://a/1.png")
        assert not any("epp_encode_decisions_total" in key for key in page(desk, metrics))
        (entry,) = explain.last()
    assert entry["encode"]["why"] == "never"
    assert "encode  " not in text(entry, 0.0)


async def test_nobody_to_encode_is_told_at_a_limited_rate() -> None:
    with structlog.testing.capture_logs() as logs:
        async with open_desk(roles=[D, P], built=built()) as desk:
            alarm = SplitAlarm(has_roles=lambda: True, clock=desk.clock)
            desk.director._observers = (desk.witness, alarm)
            for number in range(5):
                await ask(desk, f"http://a/{number}.png")
            desk.now += QUIET_S
            await ask(desk, "http://a/last.png")
    told = [line for line in logs if line["event"].startswith("nobody to encode")]
    assert [line["requests"] for line in told] == [1, 5]
    assert desk.witness.last.encoding.why == "no-encode-pods"


def test_the_wish_for_media_says_nothing_of_matches() -> None:
    """A cached prompt still has images to look at: only the destination's engine could tell."""
    cached = pod(0, D, match=Match(1000, Source.PRECISE))
    assert part(pod(1, E), destination=cached).why == "split"


def pending(desk: Any) -> dict[str, int]:
    """Tokens that pods have to compute, where any."""
    loads = {one.id.name: one.load.reserved_prefill_tokens for one in desk.pool.ready(desk.now)}
    return {name: tokens for name, tokens in loads.items() if tokens}


@pytest.mark.parametrize("end", ["headers", "body", "gone", "nobody of ours"])
async def test_media_are_load_where_they_are_encoded_until_the_answer_begins(end: str) -> None:
    async with open_desk(roles=[D, E, E, E], built=built()) as desk:
        route = await ask(desk, "http://a/1.png", "http://a/2.png")
        share = desk.witness.decisions[-1][1].media_tokens // 2
        busy = pending(desk)
        assert sorted(busy.values()) == sorted([share, share, busy["pod-0"]])
        assert set(busy) - {"pod-0"} == {one.id.name for one in desk.witness.last.encode}
        match end:
            case "headers":
                route.progress.response_headers(200, None)
            case "body":
                route.progress.body(1)
            case "gone":
                route.progress.reset(answered=False)
            case _:
                route.progress.response_headers(200, "10.9.9.9:1")
        assert set(pending(desk)) <= {"pod-0"}
        route.progress.finished()
        assert (pending(desk), desk.pool._charging.encoders) == ({}, {})


async def test_one_medium_is_load_of_one_pod_and_a_burst_spreads_over_all() -> None:
    async with open_desk(roles=[D, E, E, E], built=built()) as desk:
        await ask(desk, "http://a/1.png")
        assert len(set(pending(desk)) - {"pod-0"}) == 1
        for number in range(2, 9):
            await ask(desk, f"http://a/{number}.png")
        assert {"pod-1", "pod-2", "pod-3"} <= set(pending(desk))


async def test_in_shadow_nobody_is_charged_for_media_that_never_come() -> None:
    async with open_desk(roles=[D, E], built=built()) as desk:
        desk.switch.switch("shadow")
        await ask(desk, "http://a/1.png")
        assert set(pending(desk)) == {"pod-0"}
