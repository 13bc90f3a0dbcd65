"""Our subset of ext_proc against two independent codecs of the whole: bytes of each parse in the
other, and mean the same."""

import importlib
import json
import subprocess
import sys
import venv
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from google.protobuf.message import Message

from epp._pb import extproc_pb2 as pb
from epp.request.exchange import ModelName
from tests.conformance.extproc_samples import all_samples
from tests.fakes import extproc_messages as envoy
from tests.fakes.director import route

ROOT = Path(__file__).parents[2]
XDS = "xds-protos==1.85.0"
"""It overwrites files of other distributions, so it lives in an environment of its own."""


def _fields(message: Message) -> dict[str, Any]:
    return json_format.MessageToDict(
        message, preserving_proto_field_name=True, use_integers_for_enums=True
    )


@pytest.fixture(scope="module")
def data_plane() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a pure-Python codec of another world
        return importlib.import_module("envoy_data_plane.envoy.service.ext_proc.v3")


def test_envoy_data_plane_reads_our_bytes_and_we_read_its(data_plane: Any) -> None:
    for name, ours in all_samples():
        kind = getattr(data_plane, name)
        theirs = kind.parse(ours.SerializeToString())
        assert _unknown(theirs) == [], name
        assert type(ours).FromString(bytes(theirs)) == ours


def test_envoy_data_plane_means_what_we_mean(data_plane: Any) -> None:
    stream = envoy.a_stream()
    stream.receive(envoy.request_headers())
    stream.receive(envoy.request_body(b"hello", end=True))
    actions = stream.decided(route("10.0.0.1:8000"))
    header, body = (
        data_plane.ProcessingResponse.parse(reply.SerializeToString())
        for reply in envoy.sent(actions)
    )
    options = header.request_headers.response.header_mutation.set_headers
    assert options[0].header.key == "x-gateway-destination-endpoint"
    assert options[0].header.raw_value == b"10.0.0.1:8000"
    assert options[0].append_action.name == "OVERWRITE_IF_EXISTS_OR_ADD"
    piece = body.request_body.response.body_mutation.streamed_response
    assert (piece.body, piece.end_of_stream) == (b"hello", True)


def test_envoy_data_plane_means_what_we_mean_of_scores_and_answers(data_plane: Any) -> None:
    stream = envoy.a_stream()
    stream.receive(envoy.request_headers(end=True, response_mode=pb.STREAMED))
    scores = (("10.0.0.1:8000", 0.75), ("10.0.0.2:8000", 0.0))
    model = ModelName(asked="chat", served="internal")
    outcome = replace(route("10.0.0.1:8000"), scores=scores, model=model)
    said = envoy.sent(stream.decided(outcome))
    said += envoy.sent(
        stream.receive(envoy.response_headers(more=[("content-type", "application/json")]))
    )
    said += envoy.sent(stream.receive(envoy.response_body(b'{"model":"internal"}', end=True)))
    routing, headers, body = (
        data_plane.ProcessingResponse.parse(reply.SerializeToString()) for reply in said
    )
    assert routing.dynamic_metadata.to_dict() == {
        "envoy.lb": {
            "x-gateway-destination-endpoint": "10.0.0.1:8000",
            "x-gateway-destination-endpoint-scores": dict(scores),
        }
    }
    assert headers.response_headers.response.header_mutation.remove_headers == ["content-length"]
    assert body.response_body.response.body_mutation.body == b'{"model":"chat"}'


def _unknown(message: Any) -> list[str]:
    """Fields on any level that the other codec did not know."""
    found = [type(message).__name__] if getattr(message, "_unknown_fields", b"") else []
    for value in vars(message).values():
        parts = value.values() if isinstance(value, dict) else value
        for part in parts if isinstance(value, (list, dict)) else [value]:
            if hasattr(part, "__dataclass_fields__"):
                found += _unknown(part)
    return found


@pytest.fixture(scope="module")
def xds_python() -> Path:
    """A Python that has `xds-protos`, made once and kept beside the sources."""
    home = ROOT / ".venv-xds"
    python = home / "bin" / "python"
    marker = home / XDS
    if not marker.exists():
        venv.create(home, with_pip=False, clear=True)
        # Of its thousands of modules few are imported: compiling all takes most of the time.
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        install = [*pip, "--python", python, "install", "--no-compile", XDS]
        subprocess.run(install, check=True, timeout=100)
        marker.touch()
    return python


def test_xds_protos_reads_our_bytes_and_we_read_its(xds_python: Path) -> None:
    samples = all_samples()
    lines = [
        json.dumps({"name": name, "bytes": m.SerializeToString().hex(), "fields": _fields(m)})
        for name, m in samples
    ]
    script = Path(__file__).with_name("xds_codec.py")
    run = subprocess.run(
        [xds_python, script],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    answers = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(answers) == len(samples)
    for (_, ours), answer in zip(samples, answers, strict=True):
        assert answer["unknown"] == 0
        assert answer["fields"] == _fields(ours)
        assert type(ours).FromString(bytes.fromhex(answer["bytes"])) == ours
        assert bytes.fromhex(answer["bytes"]) == ours.SerializeToString(deterministic=True)


def test_generated_code_is_what_the_sources_generate(tmp_path: Path) -> None:
    subprocess.run(
        ["sh", ROOT / "proto" / "generate.sh", tmp_path, sys.executable], check=True, timeout=60
    )
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    kept = {
        path.name: path.read_bytes()
        for path in (ROOT / "epp" / "_pb").glob("*_pb2.py*")
        if path.suffix in (".py", ".pyi")
    }
    assert made == kept


def test_fields_that_we_do_not_know_survive() -> None:
    # Field 2000 of a ProcessingResponse, which nobody has yet.
    unknown = b"\x82\x7d\x03abc"
    message = pb.ProcessingResponse.FromString(b"\x0a\x00" + unknown)
    assert message.SerializeToString().endswith(unknown)
