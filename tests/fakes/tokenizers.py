"""Small tokenizers of the kinds that models have, trained here in a moment, with chat templates."""

import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

START, END, BOS = "<|im_start|>", "<|im_end|>", "<s>"
CHATML = (
    "{%- if tools %}{{ '<|im_start|>system\\n# Tools' }}"
    "{%- for tool in tools %}{{ '\\n' + (tool | tojson) }}{%- endfor %}{{ '<|im_end|>\\n' }}"
    "{%- endif %}"
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content }}"
    "{%- for call in message.tool_calls or [] %}"
    "{{- '<call>' + call.function.name + (call.function.arguments | tojson) }}"
    "{%- endfor %}"
    "{{- '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and not enable_thinking %}{{ '<think></think>' }}{% endif %}"
    "{%- endif %}"
)
CORPUS = (
    "The quick brown fox jumps over the lazy dog. Isn't it? I'll say so, DON'T I!",
    "def method(self, name: str = 'x') -> int:\n    return 42 + len(name)  # 3.14\n",
    "Größe naïve café über Ärger; e\u0301te\u0301 \u212bngström",
    "日本語のテキスト 中文文本 한국어 Привет мир שלום",
) * 8

Train = Callable[[Tokenizer], None]


def _special(content: str, **flags: bool) -> AddedToken:
    return AddedToken(content, special=True, normalized=False, **flags)


def _trained(tokenizer: Tokenizer, trainer: Any, added: Sequence[AddedToken]) -> Tokenizer:
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens(list(added))
    return tokenizer


_CHAT = (_special(START), _special(END))


def byte_level() -> Tokenizer:
    """As Qwen's and Llama 3's: a pattern, bytes, and BOS where asked for."""
    tokenizer = Tokenizer(models.BPE())
    words = Regex(r"(?i:'s|'t|'ll)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(words, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    _trained(tokenizer, trainer, (*_CHAT, _special(BOS)))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    return tokenizer


def metaspace_first() -> Tokenizer:
    """A blank is put before the text's first word only."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=["<unk>"], show_progress=False)
    return _trained(tokenizer, trainer, _CHAT)


def composed() -> Tokenizer:
    """Text is composed first (NFC), and some tokens take the blanks around them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    odd = (_special("<|left|>", lstrip=True), _special("<|right|>", rstrip=True))
    return _trained(tokenizer, trainer, (*_CHAT, *odd, AddedToken("naïve", normalized=True)))


def byte_fallback() -> Tokenizer:
    """As Llama 2's: blanks become a letter, and what is unknown becomes its bytes."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=["<unk>", BOS, "</s>", *bytes_], show_progress=False
    )
    return _trained(tokenizer, trainer, _CHAT)


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "byte-level": byte_level,
    "metaspace-first": metaspace_first,
    "composed": composed,
    "byte-fallback": byte_fallback,
}


@cache
def file_of(kind: str) -> str:
    """The text of its tokenizer.json."""
    return KINDS[kind]().to_str()


def write(
    folder: Path,
    kind: str = "byte-level",
    *,
    template: str | None = CHATML,
    **settings: Any,
) -> Path:
    """The files of a model, as they are mounted."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(file_of(kind))
    if template is not None:
        settings["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": BOS, **settings}))
    return folder


def fields(**members: Any) -> tuple[tuple[str, bytes], ...]:
    """What `/tokenize` would be asked."""
    return tuple((name, json.dumps(value).encode()) for name, value in members.items())
