from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTCOME_UNKNOWN: _ClassVar[Outcome]
    OK: _ClassVar[Outcome]
    ENGINE_ERROR: _ClassVar[Outcome]
    ENGINE_GONE: _ClassVar[Outcome]
    CLIENT_GONE: _ClassVar[Outcome]
OUTCOME_UNKNOWN: Outcome
OK: Outcome
ENGINE_ERROR: Outcome
ENGINE_GONE: Outcome
CLIENT_GONE: Outcome

class TierDelta(_message.Message):
    __slots__ = ("tier", "stored", "removed")
    TIER_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    tier: str
    stored: bytes
    removed: bytes
    def __init__(self, tier: _Optional[str] = ..., stored: _Optional[bytes] = ..., removed: _Optional[bytes] = ...) -> None: ...

class BlockDelta(_message.Message):
    __slots__ = ("reset", "stored", "removed", "own_block_tokens", "scheme", "tiers")
    RESET_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    OWN_BLOCK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SCHEME_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    reset: bool
    stored: bytes
    removed: bytes
    own_block_tokens: int
    scheme: int
    tiers: _containers.RepeatedCompositeFieldContainer[TierDelta]
    def __init__(self, reset: bool = ..., stored: _Optional[bytes] = ..., removed: _Optional[bytes] = ..., own_block_tokens: _Optional[int] = ..., scheme: _Optional[int] = ..., tiers: _Optional[_Iterable[_Union[TierDelta, _Mapping]]] = ...) -> None: ...

class Load(_message.Message):
    __slots__ = ("waiting", "running", "kv_usage", "total_blocks", "block_tokens", "ready", "events", "lora", "partial")
    WAITING_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    KV_USAGE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    LORA_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_FIELD_NUMBER: _ClassVar[int]
    waiting: int
    running: int
    kv_usage: float
    total_blocks: int
    block_tokens: int
    ready: bool
    events: bool
    lora: Lora
    partial: bool
    def __init__(self, waiting: _Optional[int] = ..., running: _Optional[int] = ..., kv_usage: _Optional[float] = ..., total_blocks: _Optional[int] = ..., block_tokens: _Optional[int] = ..., ready: bool = ..., events: bool = ..., lora: _Optional[_Union[Lora, _Mapping]] = ..., partial: bool = ...) -> None: ...

class Lora(_message.Message):
    __slots__ = ("running", "waiting", "most", "base")
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    MOST_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    running: _containers.RepeatedScalarFieldContainer[str]
    waiting: _containers.RepeatedScalarFieldContainer[str]
    most: int
    base: str
    def __init__(self, running: _Optional[_Iterable[str]] = ..., waiting: _Optional[_Iterable[str]] = ..., most: _Optional[int] = ..., base: _Optional[str] = ...) -> None: ...

class FirstToken(_message.Message):
    __slots__ = ("decision_id", "ttft_s")
    DECISION_ID_FIELD_NUMBER: _ClassVar[int]
    TTFT_S_FIELD_NUMBER: _ClassVar[int]
    decision_id: str
    ttft_s: float
    def __init__(self, decision_id: _Optional[str] = ..., ttft_s: _Optional[float] = ...) -> None: ...

class Done(_message.Message):
    __slots__ = ("decision_id", "outcome", "status", "prompt_tokens", "cached_tokens", "completion_tokens", "ttft_s", "predicted_cached_tokens", "duration_s")
    DECISION_ID_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TTFT_S_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DURATION_S_FIELD_NUMBER: _ClassVar[int]
    decision_id: str
    outcome: Outcome
    status: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    ttft_s: float
    predicted_cached_tokens: int
    duration_s: float
    def __init__(self, decision_id: _Optional[str] = ..., outcome: _Optional[_Union[Outcome, str]] = ..., status: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., ttft_s: _Optional[float] = ..., predicted_cached_tokens: _Optional[int] = ..., duration_s: _Optional[float] = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("index", "of")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    OF_FIELD_NUMBER: _ClassVar[int]
    index: int
    of: int
    def __init__(self, index: _Optional[int] = ..., of: _Optional[int] = ...) -> None: ...

class Record(_message.Message):
    __slots__ = ("version", "endpoint", "incarnation", "nonce", "seq", "blocks", "load", "first_tokens", "done", "part")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    version: int
    endpoint: str
    incarnation: int
    nonce: int
    seq: int
    blocks: BlockDelta
    load: Load
    first_tokens: _containers.RepeatedCompositeFieldContainer[FirstToken]
    done: _containers.RepeatedCompositeFieldContainer[Done]
    part: Part
    def __init__(self, version: _Optional[int] = ..., endpoint: _Optional[str] = ..., incarnation: _Optional[int] = ..., nonce: _Optional[int] = ..., seq: _Optional[int] = ..., blocks: _Optional[_Union[BlockDelta, _Mapping]] = ..., load: _Optional[_Union[Load, _Mapping]] = ..., first_tokens: _Optional[_Iterable[_Union[FirstToken, _Mapping]]] = ..., done: _Optional[_Iterable[_Union[Done, _Mapping]]] = ..., part: _Optional[_Union[Part, _Mapping]] = ...) -> None: ...

class ReplicaSums(_message.Message):
    __slots__ = ("version", "replica", "sums")
    class Sum(_message.Message):
        __slots__ = ("endpoint", "incarnation", "requests", "prefill_tokens", "decode_blocks", "pending", "keys")
        ENDPOINT_FIELD_NUMBER: _ClassVar[int]
        INCARNATION_FIELD_NUMBER: _ClassVar[int]
        REQUESTS_FIELD_NUMBER: _ClassVar[int]
        PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
        DECODE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
        PENDING_FIELD_NUMBER: _ClassVar[int]
        KEYS_FIELD_NUMBER: _ClassVar[int]
        endpoint: str
        incarnation: int
        requests: int
        prefill_tokens: int
        decode_blocks: int
        pending: int
        keys: bytes
        def __init__(self, endpoint: _Optional[str] = ..., incarnation: _Optional[int] = ..., requests: _Optional[int] = ..., prefill_tokens: _Optional[int] = ..., decode_blocks: _Optional[int] = ..., pending: _Optional[int] = ..., keys: _Optional[bytes] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    SUMS_FIELD_NUMBER: _ClassVar[int]
    version: int
    replica: str
    sums: _containers.RepeatedCompositeFieldContainer[ReplicaSums.Sum]
    def __init__(self, version: _Optional[int] = ..., replica: _Optional[str] = ..., sums: _Optional[_Iterable[_Union[ReplicaSums.Sum, _Mapping]]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("version", "endpoint", "token", "incarnation", "nonce", "recall")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    RECALL_FIELD_NUMBER: _ClassVar[int]
    version: int
    endpoint: str
    token: str
    incarnation: int
    nonce: int
    recall: bool
    def __init__(self, version: _Optional[int] = ..., endpoint: _Optional[str] = ..., token: _Optional[str] = ..., incarnation: _Optional[int] = ..., nonce: _Optional[int] = ..., recall: bool = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("version", "refused", "writers", "memory", "more")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    WRITERS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    version: int
    refused: str
    writers: int
    memory: bytes
    more: bool
    def __init__(self, version: _Optional[int] = ..., refused: _Optional[str] = ..., writers: _Optional[int] = ..., memory: _Optional[bytes] = ..., more: bool = ...) -> None: ...

class Said(_message.Message):
    __slots__ = ("record", "memory")
    RECORD_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    record: bytes
    memory: Memory
    def __init__(self, record: _Optional[bytes] = ..., memory: _Optional[_Union[Memory, _Mapping]] = ...) -> None: ...

class Memory(_message.Message):
    __slots__ = ("piece", "index", "last")
    PIECE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    piece: bytes
    index: int
    last: bool
    def __init__(self, piece: _Optional[bytes] = ..., index: _Optional[int] = ..., last: bool = ...) -> None: ...
