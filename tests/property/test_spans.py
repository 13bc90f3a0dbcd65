"""Members of a JSON object are found where they stand, however it is spaced and spelled."""

import json

from hypothesis import given
from hypothesis import strategies as st

from epp.bodies.spans import Body, Member

GAPS = st.sampled_from(["", "", " ", "\n\t", "  \r\n"])
NAMES = st.sampled_from(["a", "b", "max_tokens", "é", 'q"', "back\\slash", ""])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 120) | st.text('ab"\\{}[]:, é\n', max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def texts(draw: st.DrawFn) -> tuple[bytes, tuple[Member, ...]]:
    """An object and its members; names may stand twice, with values that begin alike."""
    raw, members = draw(GAPS).encode() + b"{", []
    for number in range(draw(st.integers(0, 5))):
        raw += (b"," if number else b"") + draw(GAPS).encode()
        name, key = draw(NAMES), len(raw)
        raw += json.dumps(name, ensure_ascii=draw(st.booleans())).encode()
        raw += f"{draw(GAPS)}:{draw(GAPS)}".encode()
        value = len(raw)
        raw += json.dumps(draw(VALUES), ensure_ascii=draw(st.booleans())).encode()
        members.append(Member(name, key, value, len(raw)))
        raw += draw(GAPS).encode()
    return raw + b"}" + draw(GAPS).encode(), tuple(members)


@given(texts())
def test_each_member_is_found_where_it_stands(made: tuple[bytes, tuple[Member, ...]]) -> None:
    raw, members = made
    assert Body.read(raw).members == members


@given(texts(), st.sampled_from(["a", "new"]), st.sets(NAMES, max_size=2))
def test_an_edit_changes_what_it_names_and_nothing_else(
    made: tuple[bytes, tuple[Member, ...]], name: str, drop: set[str]
) -> None:
    raw, _ = made
    before = json.loads(raw)
    edited = Body.read(raw).edited(put={name: b"[7]"}, drop=drop - {name})
    kept = {key: value for key, value in before.items() if key not in drop - {name}}
    assert json.loads(edited) == {**kept, name: [7]}
