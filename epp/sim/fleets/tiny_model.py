"""Write a tiny Llama with random weights, its tokenizer and a chat template to a directory.

Usage: tiny_model.py DIRECTORY, run as a file by the Python of vLLM's own environment: nothing here
may import `epp`. The same versions write the same model every time. Its sizes are what vLLM on CPUs
can run: `head_dim` 32 is the smallest that its attention knows.
"""

import shutil
import sys
import sysconfig
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 2048
SPECIAL = ("<s>", "</s>", "<|user|>", "<|assistant|>", "<|system|>")
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE, trained on the standard library's own sources: text that is always there."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    sources = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:200]
    trained.train([str(source) for source in sources], trainer)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=trained, bos_token=SPECIAL[0], eos_token=SPECIAL[1]
    )
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


def model() -> LlamaForCausalLM:
    """820,000 random weights, spread so wide that the likeliest token stands out clearly.

    Greedy answers then do not depend on the order in which an engine adds up numbers.
    """
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=4096,
        initializer_range=0.2,
        bos_token_id=0,
        eos_token_id=1,
        torch_dtype=torch.float32,
    )
    return LlamaForCausalLM(config)


def main(directory: Path) -> None:
    """Write all of it, or nothing: the directory appears when it is complete."""
    partial = directory.with_name(directory.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    tokenizer().save_pretrained(partial)
    model().save_pretrained(partial, safe_serialization=True)
    shutil.rmtree(directory, ignore_errors=True)
    partial.rename(directory)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
