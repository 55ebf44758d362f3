"""Builds a byte-level BPE tokenizer from the metadata of a GGUF file.

How text is split before merging is named by `tokenizer.ggml.pre`. A split that is not known is refused: with the
wrong one the model reads tokens it was never trained on, and nothing but the quality of its answers would show it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from paceline_runtime.model.source import ModelInvalid

from .byte_alphabet import BYTE_OF_CHARACTER, CHARACTER_OF_BYTE

_CONTROL: Final = 3
_USER_DEFINED: Final = 4

_LLAMA3_SPLIT: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT: Final = _LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")


def _gpt2_split() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _digits_then_gpt2_split() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2_split()])


def _regex_split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


_SPLITS: Final[Mapping[str, Callable[[], pre_tokenizers.PreTokenizer]]] = {
    "default": _gpt2_split,
    "gpt-2": _gpt2_split,
    "smollm": _digits_then_gpt2_split,
    "llama-bpe": lambda: _regex_split(_LLAMA3_SPLIT),
    "llama3": lambda: _regex_split(_LLAMA3_SPLIT),
    "qwen2": lambda: _regex_split(_QWEN2_SPLIT),
}
_IGNORE_MERGES: Final = frozenset({"llama-bpe", "llama3"})
_NFC: Final = frozenset({"qwen2"})


def _spell(token: str) -> str:
    """A token in the byte alphabet; some files write added tokens in plain text."""
    if all(character in BYTE_OF_CHARACTER for character in token):
        return token
    return "".join(CHARACTER_OF_BYTE[byte] for byte in token.encode())


def build_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that a GGUF file describes.

    Raises:
        ModelInvalid: when the file describes none, or one of a kind that is not supported.
    """
    kind = metadata.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise ModelInvalid(
            f"the GGUF file's tokenizer is {kind!r}; byte-level BPE (gpt2) can be built from GGUF. "
            "Serve the model's safetensors folder, which has a tokenizer.json, instead"
        )
    split = metadata.get("tokenizer.ggml.pre", "default")
    if split not in _SPLITS:
        raise ModelInvalid(
            f"the GGUF file's pre-tokenizer is {split!r}; known are {', '.join(sorted(_SPLITS))}. "
            "Serve the model's safetensors folder, which has a tokenizer.json, instead"
        )
    try:
        tokens: list[str] = metadata["tokenizer.ggml.tokens"]
        merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    except KeyError as error:
        raise ModelInvalid(f"the GGUF file has a tokenizer without {error.args[0]}") from None

    types = metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    added = {index for index, kind in enumerate(types) if kind in (_CONTROL, _USER_DEFINED)}
    vocabulary = {token if index in added else _spell(token): index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=split in _IGNORE_MERGES))
    if split in _NFC:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _SPLITS[split]()
    tokenizer.decoder = decoders.ByteLevel()
    for index in sorted(added):
        token = AddedToken(tokens[index], normalized=False, special=types[index] == _CONTROL)
        if types[index] == _CONTROL:
            tokenizer.add_special_tokens([token])
        else:
            tokenizer.add_tokens([token])
    if metadata.get("tokenizer.ggml.add_bos_token") and (bos := special_token(metadata, "bos")) is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A",
            pair=f"{bos} $A {bos} $B",
            special_tokens=[(bos, metadata["tokenizer.ggml.bos_token_id"])],
        )
    return tokenizer


_SPECIAL_KEYS: Final = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}


def special_token(metadata: Mapping[str, Any], name: str) -> str | None:
    """The text of the `bos`, `eos`, `unk` or `pad` token, where the file names one."""
    index = metadata.get(f"tokenizer.ggml.{_SPECIAL_KEYS[name]}_token_id")
    tokens = metadata.get("tokenizer.ggml.tokens", [])
    return tokens[index] if isinstance(index, int) and 0 <= index < len(tokens) else None


def special_tokens(metadata: Mapping[str, Any]) -> dict[str, str]:
    """What a chat template may refer to: `bos_token`, `eos_token`, `unk_token`, `pad_token`."""
    found = {f"{name}_token": special_token(metadata, name) for name in _SPECIAL_KEYS}
    return {name: token for name, token in found.items() if token is not None}
