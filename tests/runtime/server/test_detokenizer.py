"""Text is delivered in whole characters, and nothing is lost or doubled."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from paceline_runtime.model.source import ModelInvalid
from paceline_runtime.server.detokenizer import ByteTable, Detokenizer
from paceline_runtime.server.tokenizer import Tokenizer as PacelineTokenizer

IDS = st.lists(st.integers(0, 400), max_size=40)


@given(token_ids=IDS, cuts=st.lists(st.integers(1, 5), min_size=1, max_size=40))
def test_pieces_join_to_the_whole_text_for_any_tokens_in_any_steps(
    tiny_tokenizer: PacelineTokenizer, token_ids: list[int], cuts: list[int]
) -> None:
    detokenizer = tiny_tokenizer.detokenizer()
    pieces, at, n = [], 0, 0
    while at < len(token_ids):
        size = cuts[n % len(cuts)]
        pieces.append(detokenizer.feed(token_ids[at : at + size]))
        at, n = at + size, n + 1
    pieces.append(detokenizer.flush())
    assert "".join(pieces) == tiny_tokenizer.decode(token_ids)


@given(text=st.text(max_size=60))
def test_text_is_never_shown_before_its_character_is_whole(tiny_tokenizer: PacelineTokenizer, text: str) -> None:
    detokenizer = tiny_tokenizer.detokenizer()
    shown = ""
    for token_id in tiny_tokenizer.encode(text, add_special_tokens=False):
        shown += detokenizer.feed([token_id])
        assert text.startswith(shown)
    assert shown + detokenizer.flush() == text


def test_bytes_that_never_become_a_character_show_as_the_replacement_character(
    tiny_tokenizer: PacelineTokenizer,
) -> None:
    ids = tiny_tokenizer.encode("🎉", add_special_tokens=False)
    detokenizer = tiny_tokenizer.detokenizer()
    assert [detokenizer.feed([token_id]) for token_id in ids[:-1]] == [""] * (len(ids) - 1)
    assert detokenizer.flush() == "\ufffd"


def test_special_tokens_and_ids_without_a_token_have_no_text(tiny_tokenizer: PacelineTokenizer) -> None:
    end = tiny_tokenizer.encode("<|im_end|>")
    assert len(end) == 1
    assert tiny_tokenizer.detokenizer().feed([*end, 99999]) == ""


def _sentencepiece_like() -> Tokenizer:
    """Words with U+2581 for the space, and byte fallback, as Llama 2 has it."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁Paris", "▁is", "▁a", "Par", "is", "!"]
    tokenizer = Tokenizer(
        models.BPE(vocab={piece: n for n, piece in enumerate(pieces)}, merges=[], unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


PIECES = st.one_of(st.sampled_from(["▁Paris", "▁is", "▁a", "Par", "is", "!"]), st.text(min_size=1, max_size=3))


@given(pieces=st.lists(PIECES, max_size=20))
def test_sentencepiece_vocabularies_show_the_same_text_as_decoding_at_once(pieces: list[str]) -> None:
    tokenizer = _sentencepiece_like()
    token_ids = [
        token_id
        for piece in pieces
        for token_id in (
            [tokenizer.token_to_id(piece)]
            if tokenizer.token_to_id(piece) is not None
            else [tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in piece.encode()]
        )
    ]
    detokenizer = Detokenizer(ByteTable(tokenizer, frozenset()))
    text = "".join(detokenizer.feed([token_id]) for token_id in token_ids) + detokenizer.flush()
    # The library drops the very first space: an answer goes on after a prompt and keeps it.
    assert text.removeprefix(" ") == tokenizer.decode(token_ids, skip_special_tokens=True).removeprefix(" ")


def test_the_first_word_of_an_answer_keeps_its_space() -> None:
    tokenizer = _sentencepiece_like()
    detokenizer = Detokenizer(ByteTable(tokenizer, frozenset()))
    assert detokenizer.feed([tokenizer.token_to_id("▁is")]) == " is"


def test_a_vocabulary_whose_tokens_have_no_bytes_is_refused() -> None:
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    with pytest.raises(ModelInvalid, match="WordPiece"):
        ByteTable(tokenizer, frozenset())
