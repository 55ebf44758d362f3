"""The model's tokenizer and chat template, read from a safetensors folder or a GGUF file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer as Backend

from paceline_runtime.model.source import ModelInvalid

from .chat_template import ChatTemplate
from .detokenizer import ByteTable, Detokenizer
from .gguf_metadata import GGUFError, read_metadata
from .gguf_tokenizer import build_tokenizer, special_tokens

_SENTINELS: Final = range(0xF0000, 0xFFFFE)
"""Private-use characters, one of which stands in for control tokens in clients' text while a template runs."""


_SHORT: Final = 256
"""Characters or tokens, up to which a call that keeps the interpreter's lock is quicker than one that lets it go."""


class Tokenizer:
    """Text to token ids and back. Methods may be called from any thread.

    For all but short texts the interpreter's lock is let go: other threads, and with them the event loop, run on.

    Attributes:
        vocab_size: ids are below this.
        longest_token_chars: no token stands for more characters.
        chat_template: `None` for models without one.
        tool_template: the one to use when there are tools: some models have a second template for that.

    Raises:
        ModelInvalid: when tokens cannot be turned into text one by one.
        ValueError: when the chat template is not valid.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        chat_template: str | None,
        special_tokens: Mapping[str, str],
        tool_template: str | None = None,
    ) -> None:
        self._backend = backend
        added = backend.get_added_tokens_decoder()
        self._control = {token.content: index for index, token in added.items() if token.special}
        self._control_pattern = re.compile(
            "|".join(re.escape(token) for token in sorted(self._control, key=len, reverse=True)) or r"(?!)"
        )
        self._every_byte = ByteTable(backend, frozenset())
        self._tables: dict[frozenset[str], ByteTable] = {}
        self.vocab_size = max(backend.get_vocab().values(), default=-1) + 1
        self.longest_token_chars = max(map(len, backend.get_vocab()), default=1)
        self.chat_template = None if chat_template is None else ChatTemplate(chat_template, special_tokens)
        self.tool_template = (
            self.chat_template if tool_template is None else ChatTemplate(tool_template, special_tokens)
        )

    @cached_property
    def _plain_backend(self) -> Backend:
        """The same tokenizer, for which the text of a control token is just text."""
        plain = Backend.from_str(self._backend.to_str())
        plain.encode_special_tokens = True
        return plain

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`; control tokens written in it are recognised.

        Args:
            add_special_tokens: also add what the model wants around a text, e.g. its beginning-of-sequence token.
        """
        return _encode(self._backend, text, add_special_tokens)

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        arguments: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Token ids of a conversation.

        Control tokens come from the template only: `<|im_end|>` in a message's text is encoded as the characters it
        is written with, so that a client's text cannot end its turn and begin another's. So it is in the tools.

        Args:
            tools: definitions of tools in OpenAI's form.
            arguments: further names for the template.

        Raises:
            TemplateRejected: when the template refuses the conversation.
            LookupError: when the model has no chat template.
        """
        template = self.tool_template if tools else self.chat_template
        if template is None:
            raise LookupError("the model has no chat template")
        (guarded, guarded_tools), sentinel, found = self._guard([messages, tools or []])
        text = template.render(
            guarded, tools=guarded_tools, add_generation_prompt=add_generation_prompt, arguments=arguments
        )
        if not found:
            return self.encode(text, add_special_tokens=False)
        token_ids: list[int] = []
        for n, piece in enumerate(re.split(f"{sentinel}([0-9]+){sentinel}", text)):
            if n % 2:
                token_ids += _encode(self._plain_backend, found[int(piece)], False)
            elif piece := piece.replace(sentinel, ""):
                token_ids += self.encode(piece, add_special_tokens=False)
        return token_ids

    def _guard(self, values: list[Any]) -> tuple[list[Any], str, list[str]]:
        """Values with control tokens replaced by numbered sentinels, the sentinel, and the tokens by number."""
        strings = list(_strings(values))
        if not any(self._control_pattern.search(string) for string in strings):
            return values, "", []
        used = {character for string in strings for character in string if ord(character) >= _SENTINELS.start}
        sentinel = next(chr(point) for point in _SENTINELS if chr(point) not in used)
        found: list[str] = []

        def stand_in(match: re.Match[str]) -> str:
            found.append(match.group())
            return f"{sentinel}{len(found) - 1}{sentinel}"

        def guard(value: Any) -> Any:
            if isinstance(value, str):
                return self._control_pattern.sub(stand_in, value)
            if isinstance(value, Mapping):
                return {guard(key): guard(item) for key, item in value.items()}
            if isinstance(value, Sequence):
                return [guard(item) for item in value]
            return value

        return [guard(value) for value in values], sentinel, found

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of `token_ids`, special tokens left out."""
        return _decode(self._backend, token_ids, skip_special_tokens=True)

    def decode_all(self, token_ids: Sequence[int]) -> str:
        """Text of `token_ids`, special tokens written out."""
        return _decode(self._backend, token_ids, skip_special_tokens=False)

    def detokenizer(self, *, show_special: bool = False, show: frozenset[str] = frozenset()) -> Detokenizer:
        """A detokenizer for one answer.

        Args:
            show_special: write special tokens out.
            show: write these special tokens out at least.
        """
        if show_special:
            return Detokenizer(self._every_byte)
        shown = frozenset(show & self._control.keys())
        table = self._tables.get(shown)
        if table is None:
            hidden = frozenset(index for token, index in self._control.items() if token not in shown)
            table = self._tables[shown] = ByteTable(self._backend, hidden)
        return Detokenizer(table)

    def token_bytes(self, token_id: int) -> bytes:
        """What one token stands for, special ones written out."""
        return self._every_byte[token_id]


def _encode(backend: Backend, text: str, add_special_tokens: bool) -> list[int]:
    if len(text) <= _SHORT:
        return backend.encode(text, add_special_tokens=add_special_tokens).ids
    # `encode` holds the interpreter's lock until it is done, the calls for batches do not.
    return backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids


def _decode(backend: Backend, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
    if len(token_ids) <= _SHORT:
        return backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)
    return backend.decode_batch([list(token_ids)], skip_special_tokens=skip_special_tokens)[0]


def text_size(value: Any) -> int:
    """Characters of all strings inside a value, each counted as one more."""
    return sum(len(string) + 1 for string in _strings(value))


def _strings(value: Any) -> Any:
    """All strings inside a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, Sequence):
        for item in value:
            yield from _strings(item)


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of the model at `path`, a GGUF file or a folder with `tokenizer.json`.

    Raises:
        ModelInvalid: when there is none, or it cannot be read; the message says what is missing.
    """
    try:
        return _from_folder(path) if path.is_dir() else _from_gguf(path)
    except ModelInvalid:
        raise
    except (GGUFError, OSError, ValueError) as error:
        raise ModelInvalid(f"cannot read the tokenizer at {path}: {error}") from error


def _from_gguf(path: Path) -> Tokenizer:
    metadata = read_metadata(path)
    return Tokenizer(
        build_tokenizer(metadata),
        chat_template=metadata.get("tokenizer.chat_template"),
        tool_template=metadata.get("tokenizer.chat_template.tool_use"),
        special_tokens=special_tokens(metadata),
    )


def _from_folder(path: Path) -> Tokenizer:
    file = path / "tokenizer.json"
    if not file.is_file():
        gguf = sorted(path.glob("*.gguf"))
        if len(gguf) == 1:
            return _from_gguf(gguf[0])
        raise ModelInvalid(
            f"there is no tokenizer.json in {path}; save the model's fast tokenizer there "
            "(AutoTokenizer.from_pretrained(…).save_pretrained(folder) writes it)"
        )
    try:
        backend = Backend.from_file(str(file))
    except Exception as error:  # the library raises plain Exception
        raise ModelInvalid(f"{file} is no tokenizer: {error}") from error
    config = _json_object(path / "tokenizer_config.json")
    special = _json_object(path / "special_tokens_map.json") | config
    template = path / "chat_template.jinja"
    templates = _templates_of(config)
    return Tokenizer(
        backend,
        chat_template=template.read_text() if template.is_file() else templates.get("default"),
        tool_template=templates.get("tool_use"),
        special_tokens={
            name: text
            for name in ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
            if (text := _token_text(special.get(name))) is not None
        },
    )


def _templates_of(config: Mapping[str, Any]) -> dict[str, str]:
    """`chat_template` is a string, or a list of named ones: `default` is for chat, `tool_use` for chat with tools."""
    template = config.get("chat_template")
    if isinstance(template, str):
        return {"default": template}
    if not isinstance(template, list):
        return {}
    return {item["name"]: item["template"] for item in template}


def _token_text(token: Any) -> str | None:
    """Special tokens are written as text or as `{"content": text, …}`."""
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _json_object(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    value = json.loads(file.read_text())
    if not isinstance(value, dict):
        raise ModelInvalid(f"{file} is no JSON object")
    return value
