"""Tokens made from a model's files: what is rendered, what is left to the engine, what is read."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from epp.errors import ConfigError
from epp.request.tokens import encoder, files
from epp.request.tokens.cutting import cut_tokens, frequent
from epp.request.tokens.files import ModelFiles
from epp.request.tokens.local import LocalModel
from epp.request.tokens.models import Models
from epp.request.tokens.prefixes import STATE_BYTES, Prefixes
from epp.request.tokens.template import ChatTemplate
from epp.request.tokens.tokenised import UnrenderableError
from epp.state import blocks
from tests.fakes.tokenizers import BOS, CHATML, END, START, fields, file_of, write

USER = [{"role": "user", "content": "Hello there"}]
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"b": 1, "a": 2}'}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def prefixes(max_bytes: int = 1 << 20) -> Prefixes:
    return Prefixes(max_bytes, block_tokens=16, max_keys=64)


def model(template: str | None = CHATML, kind: str = "byte-level") -> LocalModel:
    templates = {} if template is None else {"default": template}
    return LocalModel(ModelFiles(file_of(kind), templates, {"bos_token": BOS}), prefixes())


@pytest.fixture(scope="module")
def chatml() -> LocalModel:
    return model()


def rendered(local: LocalModel, **members: Any) -> str:
    return local.text(fields(**members))[0]


def test_a_completion_has_the_models_own_tokens_around_it_unless_they_are_not_wanted(
    chatml: LocalModel,
) -> None:
    reference = Tokenizer.from_str(file_of("byte-level"))
    for special in (True, False):
        ids = chatml.ids(fields(prompt="Größe", add_special_tokens=special))
        assert ids == blocks.pack(reference.encode("Größe", add_special_tokens=special).ids)
    assert chatml.ids(fields(prompt="Größe")) == chatml.ids(
        fields(prompt="Größe", add_special_tokens=True)
    )


def test_a_chat_is_rendered_with_the_head_of_its_answer(chatml: LocalModel) -> None:
    assert rendered(chatml, messages=USER) == (f"{START}user\nHello there{END}\n{START}assistant\n")
    asked = rendered(chatml, messages=USER, add_generation_prompt=False)
    assert asked == f"{START}user\nHello there{END}\n"


def test_arguments_of_the_template_count_and_those_that_it_does_not_know_do_not(
    chatml: LocalModel,
) -> None:
    plain = rendered(chatml, messages=USER)
    quiet = rendered(chatml, messages=USER, chat_template_kwargs={"enable_thinking": False})
    assert quiet == plain + "<think></think>"
    assert rendered(chatml, messages=USER, chat_template_kwargs={"unheard_of": 1}) == plain


def test_tools_come_as_engines_hand_them_over(chatml: LocalModel) -> None:
    odd = {"function": {"parameters": None, "x": 1, "name": "g", "strict": True}, "more": 2}
    text = rendered(chatml, messages=USER, tools=[TOOL, odd])
    head = text.partition(END)[0]
    assert head.splitlines()[2:] == [
        '{"type": "function", "function": {"name": "f", "description": null, '
        '"parameters": {"type": "object"}}}',
        '{"type": "function", "function": {"name": "g", "description": null, '
        '"parameters": null, "strict": true}}',
    ]


def test_arguments_of_a_call_are_what_their_text_says_in_its_order(chatml: LocalModel) -> None:
    calls = [CALL, {**CALL, "function": {"name": "g", "arguments": "[1]"}}]
    turn = {"role": "assistant", "content": None, "tool_calls": calls}
    text = rendered(chatml, messages=[*USER, turn])
    assert '<call>f{"b": 1, "a": 2}<call>g{}' in text


def test_parts_of_text_become_lines_or_stay_parts_as_the_template_wants() -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, "b"]}]
    assert "user\na\nb" in rendered(model(), messages=parts)
    lists = model(
        "{% for message in messages %}{% for part in message.content %}[{{ part.text }}]"
        "{% endfor %}{% endfor %}"
    )
    assert rendered(lists, messages=[*parts, {"role": "user", "content": "c"}]) == "[a][b][c]"


@pytest.mark.parametrize(
    ("template", "parts"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", False),
        ("{% for m in messages %}{% for c in m['content'] %}{% endfor %}{% endfor %}", True),
        ("{% for m in messages[1:] %}{% for c in m.content | list %}{% endfor %}"
         "{% endfor %}", True),
        ("{% set all = messages %}{% for m in all %}{% for c in m.content %}x{% endfor %}"
         "{% endfor %}", True),
        ("{% for m in messages %}{% set content = m.content %}{% for c in content %}"
         "{% endfor %}{% endfor %}", True),
        ("{% macro show(body) %}{% for c in body %}{% endfor %}{% endmacro %}"
         "{% for m in messages %}{{ show(m.content) }}{% endfor %}", True),
        ("{% macro show(body) %}{% for c in body %}{% endfor %}{% endmacro %}"
         "{% for m in messages %}{{ show(body=m.content) }}{% endfor %}", True),
        ("{% macro show(content) %}{% for c in content %}{% endfor %}{% endmacro %}"
         "{% for m in messages %}{{ m.content }}{{ show([1]) }}{% endfor %}", False),
        ("{% for tool in tools %}{% for c in tool.content %}{% endfor %}{% endfor %}", False),
    ],
)  # fmt: skip
def test_a_template_that_loops_over_content_gets_parts(template: str, parts: bool) -> None:
    assert ChatTemplate(template, {}).wants_parts is parts


def test_a_message_that_is_continued_has_no_end(chatml: LocalModel) -> None:
    turn = {"role": "assistant", "content": "To be"}
    flags = {"continue_final_message": True, "add_generation_prompt": False}
    text = rendered(chatml, messages=[*USER, turn], **flags)
    assert text.endswith(f"{START}assistant\nTo be")
    trims = model("{% for m in messages %}<{{ m.content | trim }}>{% endfor %}")
    turn["content"] = "To be  "
    assert rendered(trims, messages=[*USER, turn], **flags) == "<Hello there><To be"


def test_a_changing_line_of_accounts_is_left_out(chatml: LocalModel) -> None:
    line = "x-anthropic-billing-header: cch=1"
    for text, left in ((f"{line}\nBe brief", "Be brief"), (line, "")):
        messages = [{"role": "system", "content": text}, *USER]
        assert rendered(chatml, messages=messages).startswith(f"{START}system\n{left}{END}")


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


@pytest.mark.parametrize(
    "members",
    [
        {"messages": []},
        {"messages": "Hello"},
        {"messages": [{"content": "no role"}]},
        {"messages": [{"role": "user", "content": [IMAGE]}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "more": 1}]}]},
        {"messages": [{"role": "user", "content": 5}]},
        {"messages": [{"role": "developer", "content": "a"}]},
        {"messages": [{"role": "assistant", "tool_calls": [{**CALL, "index": 0}]}]},
        {"messages": [{"role": "assistant", "tool_calls": [{**CALL, "type": "custom"}]}]},
        {"messages": [{"role": "assistant", "tool_calls": "f"}]},
        {"messages": [{"role": "assistant", "audio": {"id": "a"}}]},
        {"messages": USER, "tools": []},
        {"messages": USER, "tools": [{"type": "custom"}]},
        {"messages": USER, "tools": [{**TOOL, "defer_loading": True}]},
        {"messages": USER, "chat_template": "{{ messages }}"},
        {"messages": USER, "chat_template_kwargs": {"truncation": True}},
        {"messages": USER, "chat_template_kwargs": {"documents": ["a"]}},
        {"messages": USER, "continue_final_message": True},
        {"messages": USER, "add_generation_prompt": "yes"},
        {
            "messages": [{"role": "assistant", "content": None}],
            "continue_final_message": True,
            "add_generation_prompt": False,
        },
    ],
)
def test_what_is_not_certain_is_left_to_the_engine(
    chatml: LocalModel, members: dict[str, Any]
) -> None:
    with pytest.raises(UnrenderableError):
        chatml.ids(fields(**members))


@pytest.mark.parametrize(
    "template",
    [
        "{{ strftime_now('%Y') }}",
        "{{ raise_exception('only pairs of turns') }}",
        "{{ messages[7].content }}",
        "{{ messages.__class__.__mro__ }}{{ messages.append(1) }}",
        "{{ 1 // 0 }}",
        "{% for",
        None,
    ],
)
def test_a_template_that_cannot_be_trusted_to_say_the_same_is_left_to_the_engine(
    template: str | None,
) -> None:
    local = model(template)
    with pytest.raises(UnrenderableError):
        local.ids(fields(messages=USER))
    assert local.ids(fields(prompt="Hello"))


def test_tools_have_a_template_of_their_own_where_there_is_one() -> None:
    templates = {"default": "plain", "tool_use": "with tools"}
    local = LocalModel(ModelFiles(file_of("byte-level"), templates), prefixes())
    assert rendered(local, messages=USER) == "plain"
    assert rendered(local, messages=USER, tools=[TOOL]) == "with tools"


# Encoders


def test_the_fast_encoder_is_used_where_it_agrees() -> None:
    chosen, why = encoder.load(file_of("byte-level"))
    assert isinstance(chosen, encoder.Fast)
    assert why == ""


def test_the_reference_stays_where_the_fast_one_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(self: encoder.Fast, text: str, *, special: bool) -> bytes:
        return b"\1\0\0\0" * len(text)

    monkeypatch.setattr(encoder.Fast, "ids", wrong)
    chosen, why = encoder.load(file_of("byte-level"))
    assert isinstance(chosen, encoder.Reference)
    assert "differs" in why
    assert chosen.pieces(["a", ""]) == [chosen.ids("a", special=False), b""]


def test_the_reference_stays_where_the_fast_one_cannot_read_the_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(self: encoder.Fast, file: str) -> None:
        raise ValueError("unsupported normalizer")

    monkeypatch.setattr(encoder.Fast, "__init__", refuse)
    chosen, why = encoder.load(file_of("byte-level"))
    assert isinstance(chosen, encoder.Reference)
    assert "unsupported normalizer" in why


def test_a_file_that_nobody_can_read_is_told() -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.json cannot be read"):
        encoder.load("{}")


# Cutting


def altered(**changes: Any) -> dict[str, Any]:
    return {**json.loads(file_of("byte-level")), **changes}


def test_only_tokens_that_stand_alone_are_cut_before() -> None:
    cuts = cut_tokens(json.loads(file_of("composed")))
    assert {START, END} <= set(cuts)
    assert not {"<|left|>", "<|right|>", "naïve"} & set(cuts)


@pytest.mark.parametrize(
    "changes",
    [
        {"normalizer": {"type": "Unheard"}},
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Unheard"}]}},
        {"model": {"type": "BPE", "dropout": 0.1}},
        {"model": {"type": "Unheard"}},
    ],
)
def test_nothing_is_cut_where_the_proof_does_not_reach(changes: dict[str, Any]) -> None:
    assert cut_tokens(altered(**changes)) == ()


def test_a_token_that_another_can_reach_over_is_not_cut_before() -> None:
    tokens = json.loads(file_of("byte-level"))["added_tokens"]
    start = next(one for one in tokens if one["content"] == START)
    for other in (f"a{START}", "b<", f"x{START[:5]}"):
        more = [*tokens, {**start, "content": other}]
        assert START not in cut_tokens(altered(added_tokens=more))
    longer = [*tokens, {**start, "content": f"{START}x"}]
    assert START in cut_tokens(altered(added_tokens=longer))


def test_a_text_is_searched_for_the_token_that_chats_of_the_model_have_most() -> None:
    prompt = f"<1>{START}user{END}{START}assistant{END}{START}"
    assert frequent(("<0>", "<1>", END, START), prompt) == START
    assert frequent((END, START), f"{START}user{END}") == START
    assert frequent(("<0>",), prompt) == ""
    assert frequent((), prompt) == ""


# Prefixes


def test_only_what_is_new_of_a_chat_is_tokenized(chatml: LocalModel) -> None:
    known, tokens = prefixes(), encoder.load(file_of("byte-level"))[0]
    text = START + "one two three " * 200 + END + START
    known.keys(tokens, text, 1, START)
    before = known.encoded_bytes
    more = text + "four" + END + START
    found = known.keys(tokens, more, 1, START)
    assert known.encoded_bytes - before == len(START + "four" + END + START)
    assert known.reused_bytes == len(text) - len(START)
    assert found == prefixes().keys(tokens, more, 1, "")
    other = known.keys(tokens, more, 2, START)
    assert other[1] != found[1], "another seed is another chain"


def test_the_memory_of_prefixes_is_bounded_and_the_oldest_go() -> None:
    tokens = encoder.load(file_of("byte-level"))[0]
    known = prefixes(max_bytes=8 * STATE_BYTES)
    text = f"{START} one two three {END}"
    for n in range(50):
        known.keys(tokens, f"{text}{n}{START}", n, START)
    assert known.bytes <= 8 * STATE_BYTES
    assert 0 < len(known) <= 8
    encoded = known.encoded_bytes
    known.keys(tokens, text + "49" + START, 49, START)
    assert known.encoded_bytes == encoded + len(START)


def test_a_prompt_beyond_the_bounded_keys_is_counted_whole() -> None:
    tokens = encoder.load(file_of("byte-level"))[0]
    known = Prefixes(1 << 20, block_tokens=4, max_keys=8)
    text = "".join(f"{START}{n} one two{END}" for n in range(100))
    for _ in range(2):
        count, keys = known.keys(tokens, text, 1, START)
        ids = tokens.ids(text, special=False)
        assert (count, keys) == (len(ids) // 4, blocks.token_keys(ids, 1, 4)[:8])


# Files


def test_models_are_found_by_their_folders(tmp_path: Path) -> None:
    write(tmp_path / "org" / "base")
    write(tmp_path / "tiny")
    (tmp_path / "adapter").symlink_to(tmp_path / "org" / "base")
    (tmp_path / ".git").mkdir()
    assert set(files.find(tmp_path)) == {"org/base", "tiny", "adapter"}
    models = Models(tmp_path, prefixes())
    assert models.of("tiny") is None, "not before it is loaded"
    models.load()
    assert models.of("adapter") is models.of("org/base") is not None
    assert models.of("elsewhere") is None
    assert sorted(models) == ["adapter", "org/base", "tiny"]


def test_files_at_the_top_serve_every_other_name(tmp_path: Path) -> None:
    write(tmp_path)
    write(tmp_path / "tiny").joinpath("tokenizer.json").write_text("{}")
    models = Models(tmp_path, prefixes())
    models.load()
    assert models.of("anything") is not None
    assert models.of("tiny") is None, "a model whose own files are bad is nobody else"
    assert len(models) == 1


def test_a_template_of_its_own_counts_more_than_the_settings(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "old"}, {"name": "tool_use", "template": "tools"}]
    write(tmp_path, template=None, chat_template=named, eos_token={"content": END}, unk_token=None)
    found = files.read(tmp_path)
    assert found.templates == {"default": "old", "tool_use": "tools"}
    assert found.special == {"bos_token": BOS, "eos_token": END}
    (tmp_path / "chat_template.json").write_text('{"chat_template": "of the processor"}')
    assert files.read(tmp_path).templates["default"] == "of the processor"
    (tmp_path / "chat_template.jinja").write_text("own")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "rag.jinja").write_text("rag")
    assert files.read(tmp_path).templates == {"default": "own", "tool_use": "tools", "rag": "rag"}


@pytest.mark.parametrize(
    ("content", "fault"),
    [("{", "is not JSON"), ("[]", "is not a JSON object"), ("\udcff", "cannot be read")],
)
def test_settings_that_cannot_be_read_are_told(tmp_path: Path, content: str, fault: str) -> None:
    write(tmp_path)
    broken = content.encode("utf-8", "surrogateescape")
    (tmp_path / "tokenizer_config.json").write_bytes(broken)
    with pytest.raises(ConfigError, match=fault):
        files.read(tmp_path)


def test_a_directory_without_models_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no tokenizer\.json"):
        files.find(tmp_path)
    with pytest.raises(ConfigError, match="is no directory"):
        files.find(tmp_path / "absent")


def test_more_models_than_fit_are_refused(tmp_path: Path) -> None:
    for n in range(files.MAX_MODELS + 1):
        folder = tmp_path / str(n)
        folder.mkdir()
        (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match="at most 64"):
        files.find(tmp_path)
