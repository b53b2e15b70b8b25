from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as HfTokenizer
from tokenizers import decoders, models

from shared.text.decode_scheme import SchemeKind
from shared.text.detokenizer import IncrementalDetokenizer
from shared.text.tokenizer import Tokenizer
from tests.accounting.effort import examples
from tests.fakes.text import tiny_tokenizer


def _wordpiece() -> HfTokenizer:
    pieces = ["[UNK]", "he", "##llo", "wor", "##ld", ".", ",", "a"]
    vocab = {piece: place for place, piece in enumerate(pieces)}
    tokenizer = HfTokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.add_special_tokens(["[UNK]"])
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    return tokenizer


TOKENIZERS = {
    "byte_level": Tokenizer(tiny_tokenizer.byte_level()),
    "llama2": Tokenizer(tiny_tokenizer.sentencepiece()),
    "gemma": Tokenizer(tiny_tokenizer.sentencepiece(strip=False)),
    "metaspace": Tokenizer(tiny_tokenizer.sentencepiece(metaspace=True)),
    "wordpiece": Tokenizer(_wordpiece()),
}
BYTE_LEVEL = TOKENIZERS["byte_level"]
LLAMA2 = TOKENIZERS["llama2"]


def _without_decoder() -> HfTokenizer:
    tokenizer = _wordpiece()
    tokenizer.decoder = None
    return tokenizer


def _stream(tokenizer: Tokenizer, pieces: list[list[int]], *, skip: bool = True) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens=skip)
    return [*(detokenizer.feed(piece) for piece in pieces), detokenizer.flush()]


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
@settings(max_examples=examples(300, 600))
def test_pieces_together_are_the_whole_decoding(name: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[name]
    # Two ids beyond the vocabulary: a model's logits are often wider than its tokenizer.
    ids = st.integers(0, tokenizer.vocab_size + 1)
    pieces = data.draw(st.lists(st.lists(ids, max_size=4), max_size=12))
    skip = data.draw(st.booleans())
    texts = _stream(tokenizer, pieces, skip=skip)
    flat = [i for piece in pieces for i in piece]
    assert "".join(texts) == tokenizer.decode(flat, skip_special_tokens=skip)


@given(text=st.text(max_size=40))
@settings(max_examples=examples(300, 600))
def test_any_text_comes_back_without_half_characters(text: str) -> None:
    pieces = [[i] for i in BYTE_LEVEL.encode(text)]
    texts = _stream(BYTE_LEVEL, pieces, skip=False)
    assert "".join(texts) == text
    assert texts[-1] == ""


@pytest.mark.parametrize("name", ["byte_level", "llama2", "gemma", "wordpiece"])
@given(data=st.data())
@settings(max_examples=examples(150, 300))
def test_an_answer_continues_its_prompt(name: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[name]
    whole = [
        i
        for i in range(tokenizer.vocab_size)
        if not tokenizer.token_text(i).startswith("\ufffd") and "<0x" not in str(tokenizer.token(i))
    ]
    ids = st.lists(st.sampled_from(whole), max_size=8)
    prompt, answer = data.draw(ids), data.draw(ids)
    detokenizer = IncrementalDetokenizer(tokenizer, prompt_ids=prompt)
    text = detokenizer.feed(answer) + detokenizer.flush()
    assert tokenizer.decode(prompt) + text == tokenizer.decode([*prompt, *answer])


def test_a_character_in_two_tokens_waits_for_the_second() -> None:
    ids = BYTE_LEVEL.encode("🙂")
    texts = _stream(BYTE_LEVEL, [[i] for i in ids])
    assert texts == [*[""] * (len(ids) - 1), "🙂", ""]


def test_what_never_becomes_a_character_is_replaced_at_the_end() -> None:
    half = BYTE_LEVEL.encode("🙂")[:1]
    assert _stream(BYTE_LEVEL, [half]) == ["", "\ufffd"]


def test_the_space_between_prompt_and_answer_stays() -> None:
    he, llo = (LLAMA2.token_id(t) or 0 for t in ("▁he", "llo"))
    alone = IncrementalDetokenizer(LLAMA2)
    assert alone.feed([he, llo]) == "hello"
    after_prompt = IncrementalDetokenizer(LLAMA2, prompt_ids=[he])
    assert after_prompt.feed([he, llo]) == " hello"
    after_bos_only = IncrementalDetokenizer(LLAMA2, prompt_ids=[1])
    assert after_bos_only.feed([he, llo]) == "hello"


def test_special_tokens_are_kept_out_unless_asked_for() -> None:
    ids = [*BYTE_LEVEL.encode("a"), BYTE_LEVEL.token_id("<|im_end|>") or 0]
    assert "".join(_stream(BYTE_LEVEL, [ids])) == "a"
    assert "".join(_stream(BYTE_LEVEL, [ids], skip=False)) == "a<|im_end|>"


def test_the_scheme_is_read_from_the_decoder() -> None:
    kinds = {name: tokenizer.scheme.kind for name, tokenizer in TOKENIZERS.items()}
    assert kinds == {
        "byte_level": SchemeKind.BYTE_LEVEL,
        "llama2": SchemeKind.SENTENCEPIECE,
        "gemma": SchemeKind.SENTENCEPIECE,
        "metaspace": SchemeKind.SENTENCEPIECE,
        "wordpiece": SchemeKind.OTHER,
    }


@pytest.mark.parametrize("name", ["byte_level", "llama2", "wordpiece"])
def test_a_token_costs_the_same_late_in_the_answer(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    detokenizer = IncrementalDetokenizer(tokenizer)

    def feed(count: int) -> float:
        start = time.process_time()
        for i in range(count):
            detokenizer.feed((3 + i % 4,))
        return time.process_time() - start

    feed(100)
    early = min(feed(2000) for _ in range(3))
    feed(20_000)
    late = min(feed(2000) for _ in range(3))
    assert late < 4 * early + 0.01


@pytest.mark.parametrize(
    ("made", "spaced", "bare"),
    [
        (_wordpiece(), "he [A] [B] a [A]", "he [A][B] a [A]"),
        (_without_decoder(), "he [A] [B] a [A]", "he [A][B] a [A]"),
        (tiny_tokenizer.byte_level(), "he[A][B]a[A]", "he[A][B]a[A]"),
        (tiny_tokenizer.sentencepiece(), "he[A][B]a[A]", "he[A][B]a[A]"),
    ],
    ids=["wordpiece", "no decoder", "byte level", "sentencepiece"],
)
def test_added_tokens_have_no_spaces_between_them_if_asked(
    made: HfTokenizer, spaced: str, bare: str
) -> None:
    """What vLLM 0.32's detokenizer writes: of most decoders' texts the option changes nothing."""
    made.add_special_tokens(["[A]"])
    made.add_tokens(["[B]"])
    tokenizer = Tokenizer(made)
    ids = [i for text in ("he", "[A]", "[B]", "a", "[A]") for i in tokenizer.encode(text)]
    for spaces, text in ((True, spaced), (False, bare)):
        detokenizer = IncrementalDetokenizer(
            tokenizer, skip_special_tokens=False, spaces_between_special_tokens=spaces
        )
        assert detokenizer.feed(ids) + detokenizer.flush() == text
    skipping = IncrementalDetokenizer(tokenizer, spaces_between_special_tokens=False)
    expected = tokenizer.decode(ids, skip_special_tokens=True)
    assert skipping.feed(ids) + skipping.flush() == expected
