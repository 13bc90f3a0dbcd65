"""What this release says to others, as bytes: the log's records, sums of replicas, the state port's
first words, seals, legs, and names of blocks. Of every release a recording stays.

`python -m tests.contract.wire` writes the recording of a release that has none.
"""

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorProto

from epp._pb import state_pb2 as pb
from epp.framework import EndpointId, Incarnation, Lora, PoolId
from epp.seals import Named, SealKeys
from epp.state import records, sums
from epp.state.blocks import Naming, seed_of, token_keys
from epp.state.records import (
    BlockChange,
    Done,
    EngineStatus,
    FirstToken,
    Outcome,
    Part,
    Record,
    TierChange,
)
from epp.state.reports import LoadReport
from epp.state.store import memory
from epp.state.sums import EndpointSum, ReplicaSums
from sidecar.transfer.legs import Leg, LegKeys

RECORDINGS = Path(__file__).parents[1] / "data" / "wire"
RELEASE = version("gie-epp")
NOW_S = 1_800_000_000.0
KEY = b"a key of thirty-two bytes or so."
LIFE = Incarnation(EndpointId(PoolId("llama"), "uid-1", 8000), 1_800_000_000_123)
NONCE = 0x0123456789ABCDEF

CHANGE = Record(
    incarnation=LIFE,
    nonce=NONCE,
    seq=7,
    blocks=BlockChange(
        stored=(1, 2**64 - 1), removed=(3,), tiers=(TierChange("CPU", stored=(4,), removed=(5,)),)
    ),
    status=EngineStatus(
        report=LoadReport(
            waiting=3,
            running=4,
            kv_usage=0.5,
            total_blocks=1000,
            block_tokens=16,
            lora=Lora(running=frozenset({"a"}), waiting=frozenset({"b"}), most=4, base="base"),
        ),
        ready=True,
        events=True,
    ),
    first_tokens=(FirstToken("decision-1", 0.25),),
    done=(
        Done(
            decision_id="decision-1",
            outcome=Outcome.OK,
            status=200,
            prompt_tokens=100,
            cached_tokens=64,
            completion_tokens=10,
            ttft_s=0.25,
            predicted_cached_tokens=64,
            duration_s=1.5,
        ),
    ),
)
SNAPSHOT = Record(
    incarnation=LIFE,
    nonce=NONCE,
    seq=0,
    blocks=BlockChange(stored=(1, 2), reset=True),
    part=Part(0, 1),
)
SUMS = ReplicaSums(
    "replica-1",
    (
        EndpointSum(
            incarnation=LIFE, requests=3, pending=2, prefill_tokens=100, decode_blocks=5, keys=(9,)
        ),
    ),
)
NAMED = Named(pool="llama", decision_id="decision-1", prefill="10.0.0.1:8000")
LEG = Leg(method="POST", path="/v1/completions", request_id="r-1", target="10.0.0.1:8000")


def said() -> dict[str, str]:
    """In hex, or as header values."""
    hello = pb.Hello(
        version=memory.VERSION,
        endpoint=str(LIFE.endpoint),
        token="token",
        incarnation=LIFE.start_ms,
        nonce=NONCE,
    )
    return {
        "Record": records.encode(CHANGE).hex(),
        "Record of a snapshot": records.encode(SNAPSHOT).hex(),
        "ReplicaSums": sums.encode(SUMS).hex(),
        "Hello": hello.SerializeToString().hex(),
        "Welcome": pb.Welcome(version=memory.VERSION, writers=2).SerializeToString().hex(),
        "seal": SealKeys(KEY).seal(NAMED, NOW_S, 60.0),
        "leg": LegKeys(KEY).sign(LEG, NOW_S),
    }


def block_keys() -> list[int]:
    """Names of the blocks of one prompt, under a salt."""
    seed = seed_of("model", salt="salt", naming=Naming.of_pool("llama", salt_key=KEY))
    return list(token_keys(range(200), seed))


def schema() -> FileDescriptorProto:
    made = FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(made)
    return made


def recording() -> dict[str, Any]:
    return {
        "release": RELEASE,
        "said": said(),
        "block_keys": [str(key) for key in block_keys()],
        "schema": schema().SerializeToString().hex(),
    }


if __name__ == "__main__":
    place = RECORDINGS / f"{RELEASE}.json"
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.open("x") as file:  # what a release has said it has said
        json.dump(recording(), file, indent=1)
        file.write("\n")
