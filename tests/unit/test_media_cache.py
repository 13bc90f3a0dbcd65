"""Images follow the endpoint that has computed them: accounts, scores, and a request's way."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from epp.errors import PluginError
from epp.framework import (
    Candidates,
    Decision,
    Endpoint,
    MediaKeeper,
    Request,
    Rung,
    Stage,
    Watcher,
    registry,
)
from epp.framework.registry import build_scorer
from epp.request.apis import messages, openai
from epp.request.apis.conversation import MAX_MEDIA, MEDIA_BYTES
from epp.request.apis.prompt import TextPrompt
from epp.request.plan.live import build, unfollowed
from epp.request.plan.resolve import resolve
from tests.fakes.desk import Desk, open_desk
from tests.fakes.endpoints import endpoint

SCORER, PRODUCER = "mm-embeddings-cache-scorer", "mm-embeddings-cache-producer"
IMAGE = MEDIA_BYTES
A, B, C = (1, IMAGE), (2, IMAGE), (3, IMAGE)


def asking(*media: tuple[int, int], held: Mapping[str, int] | None = None) -> Request:
    found = {endpoint(name).id: size for name, size in (held or {}).items()}
    return Request(id="r", api="c", path="/", media=media, media_held=found)


def keeper(**parameters: int) -> Any:
    found = registry.find(PRODUCER)
    assert found is not None
    made = found.build(parameters)
    assert isinstance(made, MediaKeeper)
    assert isinstance(made, Watcher)
    return made


def send(
    keeper: Any,
    chosen: Endpoint,
    *media: tuple[int, int],
    prefill: Endpoint | None = None,
    encode: Sequence[Endpoint] = (),
) -> None:
    decision = Decision(
        request_id="r",
        chosen=(chosen, endpoint("fallback")),
        rung=Rung.PREDICTED,
        reasons=(),
        prefilling=Stage() if prefill is None else Stage(chosen=(prefill, endpoint("spare"))),
        encoding=Stage(chosen=tuple(encode)),
    )
    keeper.chosen(asking(*media), decision)


def held(keeper: Any, *media: tuple[int, int]) -> dict[str, int]:
    return {ident.name: size for ident, size in keeper.held(media).items()}


# Formula


@pytest.mark.parametrize(
    ("media", "holds", "scores"),
    [
        ((A, B), {"one": 2 * IMAGE, "two": IMAGE}, [1.0, 0.5, 0.0]),
        ((A, B, C), {"two": IMAGE}, [0.0, 1 / 3, 0.0]),
        ((A, (2, 3 * IMAGE)), {"three": 3 * IMAGE}, [0.0, 0.0, 0.75]),
        ((A,), {"gone": IMAGE}, [0.0, 0.0, 0.0]),
        ((A,), {}, [0.0, 0.0, 0.0]),
        ((), {}, [0.0, 0.0, 0.0]),
        ((), {"one": IMAGE}, [0.0, 0.0, 0.0]),
        ((A,), {"one": 5 * IMAGE}, [1.0, 0.0, 0.0]),
    ],
)
def test_the_score_is_the_share_of_media_that_an_endpoint_holds(
    media: tuple[tuple[int, int], ...], holds: dict[str, int], scores: list[float]
) -> None:
    pool = Candidates.of([endpoint(name) for name in ("one", "two", "three")])
    rated = build_scorer(SCORER, {}).score(asking(*media, held=holds), pool)
    assert [float(score) for score in rated] == pytest.approx(scores)


# Accounts


def test_who_was_sent_media_holds_them_and_nobody_else() -> None:
    cache = keeper()
    send(cache, endpoint("one"), A, B)
    send(cache, endpoint("two"), B)
    assert held(cache, A, B, C) == {"one": 2 * IMAGE, "two": IMAGE}
    assert held(cache, C) == {}


def test_of_a_split_request_the_prefill_endpoint_holds_them() -> None:
    cache = keeper()
    send(cache, endpoint("decode"), A, prefill=endpoint("prefill"))
    assert held(cache, A) == {"prefill": IMAGE}


def test_encode_endpoints_hold_them_by_turns() -> None:
    cache = keeper()
    encoders = [endpoint("first"), endpoint("second")]
    send(cache, endpoint("decode"), A, B, C, prefill=endpoint("prefill"), encode=encoders)
    assert held(cache, A) == held(cache, C) == {"first": IMAGE}
    assert held(cache, B) == {"second": IMAGE}
    send(cache, endpoint("decode"), A, encode=[endpoint("third"), endpoint("idle")])
    assert held(cache, A) == {"first": IMAGE, "third": IMAGE}


def test_a_request_without_media_leaves_no_trace() -> None:
    cache = keeper()
    send(cache, endpoint("one"))
    assert held(cache, A) == {}
    assert len(cache) == 0


def test_the_least_recently_sent_goes_first_and_asking_changes_nothing() -> None:
    cache = keeper(cacheSizeInMBPerServer=2 * IMAGE // 2**20)
    send(cache, endpoint("one"), A)
    send(cache, endpoint("one"), B)
    send(cache, endpoint("one"), A)
    assert held(cache, B) == {"one": IMAGE}
    send(cache, endpoint("one"), C)
    assert held(cache, A, B, C) == {"one": 2 * IMAGE}
    assert held(cache, B) == {}


def test_the_newest_is_held_however_large_it_is() -> None:
    cache = keeper(cacheSizeInMBPerServer=1)
    send(cache, endpoint("one"), A, B)
    assert held(cache, A, B) == {"one": IMAGE}


def test_sizes_may_change_from_request_to_request() -> None:
    cache = keeper(cacheSizeInMBPerServer=4)
    send(cache, endpoint("one"), (1, 2**20), (2, 2**20))
    send(cache, endpoint("one"), (2, 3 * 2**20))
    assert held(cache, (1, 5), (2, 7)) == {"one": 12}
    send(cache, endpoint("one"), (2, 4 * 2**20))
    assert held(cache, (1, 5), (2, 7)) == {"one": 7}


def test_who_left_or_restarted_holds_nothing() -> None:
    cache = keeper()
    send(cache, endpoint("one"), A)
    send(cache, endpoint("two"), A)
    cache.removed([endpoint("one").id, endpoint("stranger").id])
    assert held(cache, A) == {"two": IMAGE}
    send(cache, endpoint("two", start_ms=2), B)
    assert held(cache, A, B) == {"two": IMAGE}
    assert len(cache) == 1


def test_over_all_endpoints_those_sent_to_longest_ago_lose_theirs_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cache = keeper()
    monkeypatch.setitem(type(cache).chosen.__globals__, "MAX_MEDIA", 3)
    send(cache, endpoint("one"), A, B)
    send(cache, endpoint("two"), A)
    send(cache, endpoint("one"), A)
    send(cache, endpoint("three"), C)
    assert held(cache, A, B, C) == {"one": 2 * IMAGE, "three": IMAGE}
    send(cache, endpoint("two"), A)
    assert held(cache, A, B, C) == {"one": IMAGE, "two": IMAGE, "three": IMAGE}


def test_a_cache_of_no_size_has_the_default_and_one_below_nothing_is_refused() -> None:
    cache = keeper(cacheSizeInMBPerServer=0)
    send(cache, endpoint("one"), A, B)
    assert held(cache, A, B) == {"one": 2 * IMAGE}
    with pytest.raises(PluginError, match="cacheSizeInMBPerServer must be at least 0"):
        keeper(cacheSizeInMBPerServer=-1)


# What parsers say


def image(name: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"https://images.example/{name}.png"}}


def chat(*images: str, text: str = "look") -> bytes:
    parts = [{"type": "text", "text": text}, *map(image, images)]
    return msgspec.json.encode({"model": "m", "messages": [{"role": "user", "content": parts}]})


def media(body: bytes) -> tuple[tuple[int, int], ...]:
    prompt = openai.chat("/v1/chat/completions", body).prompt
    assert isinstance(prompt, TextPrompt)
    return prompt.media


def test_an_image_is_the_same_in_any_conversation_and_counts_once() -> None:
    one, same = media(chat("a", "b", "a")), media(chat("b", text="and this?"))
    assert [size for _, size in one] == [MEDIA_BYTES] * 2
    assert one[1:] == same
    assert media(chat()) == ()


def test_media_of_one_request_are_bounded() -> None:
    body = chat(*map(str, range(3 * MAX_MEDIA)))
    prompt = openai.chat("/v1/chat/completions", body).prompt
    assert isinstance(prompt, TextPrompt)
    assert len(prompt.media) == MAX_MEDIA
    assert prompt.bounded().media == prompt.media
    assert prompt.media_tokens == 3 * MAX_MEDIA * 256


def test_images_of_anthropics_messages_have_names_too() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "aGk="}
    turn = {"role": "user", "content": [{"type": "image", "source": source}]}
    prompt = messages.messages(
        "/v1/messages", msgspec.json.encode({"model": "m", "messages": [turn]})
    ).prompt
    assert isinstance(prompt, TextPrompt)
    assert len(prompt.media) == 1


# A request's way

CONFIG = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: mm-embeddings-cache-scorer
"""


def test_a_scorer_brings_its_producer_which_a_reload_may_change() -> None:
    plan = resolve(CONFIG.encode(), "f")
    assert [use.reference for use in plan.producers["encoder-cache"]] == [PRODUCER]
    assert plan.producers["encoder-cache"][0].added
    told = CONFIG + f"- {{type: {PRODUCER}, parameters: {{cacheSizeInMBPerServer: 64}}}}\n"
    one, other = build(plan), build(resolve(told.encode(), "f"))
    assert len(other.producers["encoder-cache"]) == 1
    assert not other.plan.producers["encoder-cache"][0].added
    assert unfollowed(one, other) == ()
    assert [named.name for named in one.watchers] == [PRODUCER]
    assert build(plan, one).watchers[0].plugin is one.watchers[0].plugin


async def ask(desk: Desk, body: bytes) -> str:
    route = await desk.route(body, path="/v1/chat/completions")
    assert route.destination is not None
    return route.destination


@pytest.mark.parametrize("mode", ["normal", "load-only"])
async def test_an_image_goes_where_it_was_sent_before(mode: str) -> None:
    built = build(resolve(CONFIG.encode(), "f"))
    async with open_desk(built=built) as desk:
        desk.switch.switch(mode)
        first = await ask(desk, chat("a"))
        others = [await ask(desk, chat("a", text=f"question {n}")) for n in range(8)]
        request = desk.witness.decisions[-1][1]
    assert others == [first] * 8
    assert list(request.media_held.values()) == [MEDIA_BYTES]


async def test_a_failing_account_costs_its_say_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    built = build(resolve(CONFIG.encode(), "f"))
    cache = built.producers["encoder-cache"][0].plugin

    def fail(*_: object) -> None:
        raise KeyError

    monkeypatch.setattr(type(cache), "held", fail)
    async with open_desk(built=built) as desk:
        assert await ask(desk, chat("a"))
        request = desk.witness.decisions[-1][1]
    assert request.media_held == {}


async def test_without_the_scorer_nobody_keeps_an_account() -> None:
    async with open_desk() as desk:
        await ask(desk, chat("a"))
        await ask(desk, chat("a"))
        request = desk.witness.decisions[-1][1]
    assert request == replace(request, media_held={})
    assert len(request.media) == 1
