"""Golden data and short words for tests of the handoff."""

import json
from pathlib import Path
from typing import Any

from sidecar.handoff import Handoff
from sidecar.transfer.params import Transfer
from sidecar.transfer.steps import Action, Arrived, Finished, HandoffPolicy, SendDecode, SendPrefill
from sidecar.transfer.targets import Target

DATA = Path(__file__).parent.parent / "data" / "handoff"
A, B, C = (Target("10.0.0.1", 8000), Target("10.0.0.2", 8000), Target("10.0.0.3", 8000))


def rows(name: str) -> list[dict[str, Any]]:
    with (DATA / name).open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def recorded(kind: str) -> list[Any]:
    """Bodies that a real vLLM answered with."""
    return [row["body"] for row in rows("vllm_0.32.0_answers.jsonl") if row["kind"] == kind]


def transfer(text: bytes = b'{"kv":1}') -> Transfer:
    return Transfer(text)


def begun(*targets: Target, **policy: Any) -> tuple[Handoff, str]:
    """A handoff whose first prefill leg is under way, and that leg."""
    handoff = Handoff(HandoffPolicy(**policy), "r")
    actions = handoff.on(Arrived(targets or (A,)), 0.0)
    return handoff, sent_prefill(actions).leg


def sent_prefill(actions: list[Action]) -> SendPrefill:
    (action,) = actions
    assert isinstance(action, SendPrefill)
    return action


def sent_decode(actions: list[Action]) -> SendDecode:
    (action,) = actions
    assert isinstance(action, SendDecode)
    return action


def finished(actions: list[Action]) -> Finished:
    assert isinstance(actions[-1], Finished)
    return actions[-1]
