"""CPU time of reading one request, in process: `python -m tests.bench.parsing`.

Prints microseconds of CPU per request for each API and size of prompt: finding the parser, reading
the body, and collecting what keys and charges are made of. The last rows are compressed bodies,
where unfolding counts, and calling a model by another name.
"""

import gzip
import json
import time
from collections.abc import Callable
from random import Random
from typing import Any

from epp.request.apis import catalog
from epp.request.apis.rewrite import with_model
from epp.request.exchange import Arrival
from tests.fakes import calls
from tests.fakes.desk import post

SIZES = (200, 4_000, 36_000, 1_000_000)
EVERY = catalog.Rules(parsers=frozenset((*catalog.FAMILIES.values(), catalog.PASSTHROUGH)))
VLLM_CALL = "/vllm.grpc.engine.VllmEngine/Generate"
VERTEX_CALL = "/google.cloud.aiplatform.v1beta1.PredictionService/ChatCompletions"
MIN_S = 0.2
"""Each figure is the mean of as many calls as fit into this time."""

Make = Callable[[str], dict[str, Any]]


def _turns(text: str) -> dict[str, Any]:
    """The text as a conversation of turns of 400 bytes."""
    pieces = [text[at : at + 400] for at in range(0, len(text), 400)]
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[n % 2], "content": p} for n, p in enumerate(pieces)]}


def _ids(text: str) -> list[int]:
    return [ord(char) * 1_000 for char in text[::4]]


APIS: dict[str, Make] = {
    "/v1/completions": lambda text: {"prompt": text},
    "/v1/chat/completions": _turns,
    "/v1/responses": lambda text: {"input": _turns(text)["messages"]},
    "/v1/messages": _turns,
    "/inference/v1/generate": lambda text: {"token_ids": _ids(text)},
    "/v1/embeddings": lambda text: {"input": [text]},
    "/rerank": lambda text: {"query": "q", "documents": [text]},
    "/tokenize": lambda text: {"prompt": text},
    "/generate": lambda text: {"input_ids": _ids(text)},
    "/primary-gateway-test": lambda text: {"prompt": text},
}


def _body(make: Make, size: int) -> bytes:
    text = "".join(Random(1).choices("abcdefgh ", k=size))
    return json.dumps({"model": "m", **make(text), "max_tokens": 64}).encode()


def _form(size: int) -> Arrival:
    head = b'--b\r\ncontent-disposition: form-data; name="file"\r\n\r\n'
    tail = b'\r\n--b\r\ncontent-disposition: form-data; name="model"\r\n\r\nm\r\n--b--\r\n'
    body = head + Random(1).randbytes(size) + tail
    kind = {"content-type": "multipart/form-data; boundary=b"}
    return post(body, path="/v1/audio/transcriptions", headers=kind)


def _call(message: bytes, path: str) -> Arrival:
    return post(calls.framed(message), path=path, headers={"content-type": "application/grpc"})


def micros(work: Callable[[], object]) -> float:
    """Microseconds of CPU of one call."""
    begin, calls = time.process_time(), 0
    while time.process_time() - begin < MIN_S:
        for _ in range(5):
            work()
        calls += 5
    return (time.process_time() - begin) / calls * 1e6


def _row(name: str, works: list[Callable[[], object]]) -> None:
    print(f"{name:<28}" + "".join(f"{micros(work):>12.1f}" for work in works))


def _parse(arrival: Arrival) -> Callable[[], object]:
    return lambda: catalog.parse(arrival, EVERY)


def main() -> None:
    print(f"{'bytes of prompt':<28}" + "".join(f"{size:>12}" for size in SIZES))
    for path, make in APIS.items():
        _row(path, [_parse(post(_body(make, size), path=path)) for size in SIZES])
    _row("a form", [_parse(_form(size)) for size in SIZES])
    chats = [_body(_turns, size) for size in SIZES]
    ids = [calls.generate(ids=_ids("x" * size)) for size in SIZES]
    _row("vLLM's call (ids)", [_parse(_call(each, VLLM_CALL)) for each in ids])
    wrapped = [calls.wrapped(chat) for chat in chats]
    _row("Vertex AI's call (chat)", [_parse(_call(each, VERTEX_CALL)) for each in wrapped])
    packed = {"content-encoding": "gzip"}
    path = "/v1/chat/completions"
    _row(
        "gzip chat",
        [_parse(post(gzip.compress(chat), path=path, headers=packed)) for chat in chats],
    )
    _row("another model name (chat)", [lambda chat=chat: with_model(chat, "x") for chat in chats])
    print("microseconds of CPU per request")


if __name__ == "__main__":
    main()
