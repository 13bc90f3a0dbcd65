from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Generate(_message.Message):
    __slots__ = ("ids", "text", "sampling", "media", "media_references", "more_media")
    IDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    MEDIA_FIELD_NUMBER: _ClassVar[int]
    MEDIA_REFERENCES_FIELD_NUMBER: _ClassVar[int]
    MORE_MEDIA_FIELD_NUMBER: _ClassVar[int]
    ids: Ids
    text: str
    sampling: Sampling
    media: _containers.RepeatedScalarFieldContainer[bytes]
    media_references: _containers.RepeatedScalarFieldContainer[bytes]
    more_media: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, ids: _Optional[_Union[Ids, _Mapping]] = ..., text: _Optional[str] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., media: _Optional[_Iterable[bytes]] = ..., media_references: _Optional[_Iterable[bytes]] = ..., more_media: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Embed(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: Ids
    def __init__(self, ids: _Optional[_Union[Ids, _Mapping]] = ...) -> None: ...

class Ids(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("max_tokens", "truncate_prompt_tokens")
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    max_tokens: int
    truncate_prompt_tokens: int
    def __init__(self, max_tokens: _Optional[int] = ..., truncate_prompt_tokens: _Optional[int] = ...) -> None: ...

class Wrapped(_message.Message):
    __slots__ = ("body",)
    BODY_FIELD_NUMBER: _ClassVar[int]
    body: HttpBody
    def __init__(self, body: _Optional[_Union[HttpBody, _Mapping]] = ...) -> None: ...

class HttpBody(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...
