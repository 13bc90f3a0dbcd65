"""How one input becomes another: bytes, and sequences of messages."""

from collections.abc import Sequence
from random import Random

MAX_BYTES = 4_000
"""Longest input that is made: what is wrong with longer ones is a matter of limits."""

WORDS = (
    *(
        b'"',
        b"\\",
        b"{",
        b"}",
        b"[",
        b"]",
        b":",
        b",",
        b"null",
        b"true",
        b"false",
        b"NaN",
        b"1e999",
    ),
    *(b"0", b"-1", b"1", b"4294967296", b"18446744073709551616", b"\\u0000", b"\\ud800", b"\xff"),
    *(
        b"\r\n",
        b"\n\n",
        b"\r",
        b"data:",
        b"data: [DONE]\n\n",
        b"event: x\n",
        b"\xef\xbb\xbf",
        b"\0",
    ),
    *(b'"model"', b'"prompt"', b'"messages"', b'"content"', b'"input"', b'"usage"', b'"role"'),
    *(b'"prompt_token_ids"', b'"token_ids"', b'"tools"', b'"system"', b'"type":"text"', b'"text"'),
    *(b'"response"', b'"message"', b'"completion_tokens"', b'"prompt_tokens_details"', b'"stream"'),
    *(
        b"--b\r\n",
        b"--b--",
        b'Content-Disposition: form-data; name="model"\r\n\r\n',
        b"::1",
        b"[::1]:",
    ),
)
_EDGES = (0x00, 0x01, 0x20, 0x22, 0x5C, 0x7F, 0x80, 0xFF)


def bytes_from(data: bytes, others: Sequence[bytes], chance: Random) -> bytes:
    """`data` with a few changes; `others` lend pieces of themselves."""
    out = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 2, 4, 8))):
        _change(out, others, chance)
    return bytes(out[:MAX_BYTES])


def _change(out: bytearray, others: Sequence[bytes], chance: Random) -> None:
    at = chance.randrange(len(out) + 1)
    to = min(len(out), at + chance.choice((1, 1, 2, 4, 16, 64)))
    match chance.randrange(8):
        case 0:
            out[at:at] = chance.choice(WORDS)
        case 1:
            out[at:to] = chance.choice(WORDS)
        case 2:
            del out[at:to]
        case 3 if at < len(out):
            out[at] ^= 1 << chance.randrange(8)
        case 4:
            out[at:to] = bytes((chance.choice(_EDGES),)) * (to - at)
        case 5:  # the same once more, sometimes very often
            out[at:at] = out[at:to] * chance.choice((1, 1, 2, 300))
        case 6 if others:
            other = chance.choice(others)
            start = chance.randrange(len(other) + 1)
            out[at:to] = other[start : start + chance.randrange(200)]
        case _:
            out[at:at] = chance.randbytes(chance.randrange(1, 5))


Steps = list[tuple[int, bytes]]
"""A sequence of messages: what to do, and with which bytes."""


def pack(steps: Sequence[tuple[int, bytes]]) -> bytes:
    """Steps as one input: an octet, the length in two, and the bytes of each."""
    return b"".join(
        bytes((kind & 0xFF,)) + len(data).to_bytes(2) + data
        for kind, data in ((kind, data[:0xFFFF]) for kind, data in steps)
    )


def unpack(data: bytes) -> Steps:
    """The steps of an input; one whose length lies takes what there is."""
    steps, at = [], 0
    while at + 3 <= len(data):
        size = int.from_bytes(data[at + 1 : at + 3])
        steps.append((data[at], data[at + 3 : at + 3 + size]))
        at += 3 + size
    return steps


def steps_from(data: bytes, others: Sequence[bytes], chance: Random) -> bytes:
    """A sequence with steps moved, lost, doubled, borrowed, or with other bytes in them."""
    steps = unpack(data)
    lent = [step for other in others for step in unpack(other)]
    for _ in range(1 << chance.randrange(3)):
        at = chance.randrange(len(steps) + 1)
        match chance.randrange(6):
            case 0 if at < len(steps):
                del steps[at]
            case 1 if at < len(steps):
                steps.insert(chance.randrange(len(steps) + 1), steps[at])
            case 2 if at < len(steps):
                steps[at] = (chance.randrange(256), steps[at][1])
            case 3 if at < len(steps):
                kind, body = steps[at]
                steps[at] = (kind, bytes_from(body, [step for _, step in lent], chance))
            case 4 if at < len(steps):
                other = chance.randrange(len(steps))
                steps[at], steps[other] = steps[other], steps[at]
            case _ if lent:
                steps.insert(at, chance.choice(lent))
    return pack(steps)[: 4 * MAX_BYTES]
