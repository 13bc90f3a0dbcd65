"""Frames of the state port."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.errors import StoreError
from epp.state.store.frames import MAX_FRAME, FrameBuffer, frame


@given(st.lists(st.binary(max_size=50), max_size=8), st.integers(1, 20))
def test_any_cutting_of_the_stream_gives_the_same_frames(sent: list[bytes], size: int) -> None:
    stream = b"".join(map(frame, sent))
    buffer = FrameBuffer()
    got = [f for i in range(0, len(stream), size) for f in buffer.feed(stream[i : i + size])]
    assert got == sent


def test_the_largest_frame_passes_and_a_larger_one_does_not() -> None:
    assert FrameBuffer().feed(frame(b"x" * MAX_FRAME)) == [b"x" * MAX_FRAME]
    with pytest.raises(StoreError):
        frame(b"x" * (MAX_FRAME + 1))
    with pytest.raises(StoreError):
        FrameBuffer().feed((MAX_FRAME + 1).to_bytes(4, "big"))
