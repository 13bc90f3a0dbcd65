"""The simulated engine's tokenizer and chat template."""

from hypothesis import given
from hypothesis import strategies as st

from epp.sim.tokenizer import ANSWER_IDS, VOCABULARY, decode, encode, render_chat

PROSE = (
    "A platform team runs pods of an engine behind a gateway, and each request must go to the "
    "pod that will answer it soonest without hurting the others. "
)


def test_prose_has_four_to_five_characters_a_token() -> None:
    assert 4 <= len(PROSE) / len(encode(PROSE)) <= 5


@given(st.text(), st.text())
def test_tokens_of_a_text_begin_the_tokens_of_that_text_and_more_words(a: str, b: str) -> None:
    tokens = encode(a)
    assert encode(f"{a} more{b}")[: len(tokens)] == tokens


@given(st.text(alphabet=st.characters()))
def test_every_text_has_tokens_within_the_vocabulary(text: str) -> None:
    tokens = encode(text)
    assert bool(tokens) == bool(text)
    assert all(0 <= token < VOCABULARY for token in tokens)


@given(st.lists(st.sampled_from(ANSWER_IDS)))
def test_an_answer_reads_back_as_the_tokens_it_was_made_of(ids: list[int]) -> None:
    assert encode(decode(ids)) == ids


@given(st.lists(st.sampled_from(ANSWER_IDS), min_size=1))
def test_a_conversation_goes_on_with_the_tokens_of_the_answer(ids: list[int]) -> None:
    question = [("system", "Be brief."), ("user", "Why?")]
    asked = render_chat(question)
    both = render_chat([*question, ("assistant", decode(ids)), ("user", "And then?")])
    assert both[: len(asked) + len(ids)] == [*asked, *ids]


def test_role_tools_and_generation_prompt_make_a_difference() -> None:
    rendered = [
        render_chat([("user", "hi")]),
        render_chat([("system", "hi")]),
        render_chat([("user", "hi")], tools="[]"),
        render_chat([("user", "hi")], add_generation_prompt=False),
    ]
    assert len(set(map(tuple, rendered))) == 4
    assert rendered[3] == rendered[0][:-1]


def test_an_id_without_a_text_reads_as_a_replacement_character() -> None:
    assert decode([VOCABULARY]) == "\ufffd"
