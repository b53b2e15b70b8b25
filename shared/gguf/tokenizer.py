"""A tokenizer.json from the header of a GGUF file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.errors import ConfigError
from shared.gguf.splitting import SPLITTINGS
from shared.gguf.vocabulary import BLANK, Vocabulary

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shared.gguf.values import Values

#: Their vocabularies are in the order of merges; their scores are not.
_MERGED_IN_ORDER = frozenset({"gemma", "gemma2", "gemma3"})
#: Blanks behind special tokens are dropped, but not behind these.
_DROPS_BLANKS, _KEEP_BLANKS = "phi3", frozenset({"<unk>", "<s>", "<|endoftext|>"})


def make_tokenizer(values: Values, vocabulary: Vocabulary) -> dict[str, Any]:
    """Return the content of a tokenizer.json.

    Raises:
        ConfigError: the kind of tokenizer is not known, or a value is missing or wrong.
    """
    kind = values.text("tokenizer.ggml.model")
    if kind not in _MAKERS:
        raise ConfigError(
            f"{values.header.path}: tokenizer.ggml.model {kind!r} is not supported; supported: "
            f"{', '.join(_MAKERS)}"
        )
    return {"version": "1.0", "truncation": None, "padding": None, **_MAKERS[kind](vocabulary)}


def _byte_level(vocabulary: Vocabulary) -> dict[str, Any]:
    values = vocabulary.values
    name = values.text("tokenizer.ggml.pre")
    if name not in SPLITTINGS:
        raise ConfigError(
            f"{values.header.path}: tokenizer.ggml.pre {name!r} is not supported; supported: "
            f"{', '.join(SPLITTINGS)}"
        )
    own = SPLITTINGS[name]
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": True,
        "trim_offsets": True,
        "use_regex": True,
    }
    return {
        "added_tokens": vocabulary.added(),
        "normalizer": {"type": "NFC"} if own.is_composed else None,
        "pre_tokenizer": own.steps(),
        "post_processor": _with_bos(vocabulary, default=own.adds_bos),
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "vocab": _numbered(vocabulary),
            "merges": _stored_merges(values),
            "ignore_merges": own.takes_whole_pieces,
        },
    }


def _sentencepiece(vocabulary: Vocabulary) -> dict[str, Any]:
    values = vocabulary.values
    vocabulary = vocabulary.spelled_with_blanks()
    has_prefix = values.flag("tokenizer.ggml.add_space_prefix", True)
    blanks = {"type": "Replace", "pattern": {"String": " "}, "content": BLANK}
    steps = [{"type": "Prepend", "prepend": BLANK}, blanks] if has_prefix else [blanks]
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": BLANK}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if has_prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    added = vocabulary.added()
    if values.text("general.architecture") == _DROPS_BLANKS:
        added = [
            {**each, "rstrip": each["special"] and each["content"] not in _KEEP_BLANKS}
            for each in added
        ]
    return {
        "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": None,
        "post_processor": _with_bos(vocabulary, default=True),
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE",
            "unk_token": vocabulary.named().get("unk_token"),
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": _numbered(vocabulary),
            "merges": _stored_merges(values) or _found_merges(vocabulary),
        },
    }


_MAKERS: Mapping[str, Callable[[Vocabulary], dict[str, Any]]] = {
    "gpt2": _byte_level,
    "llama": _sentencepiece,
}


def _numbered(vocabulary: Vocabulary) -> dict[str, int]:
    return {token: number for number, token in enumerate(vocabulary.tokens)}


def _with_bos(vocabulary: Vocabulary, *, default: bool) -> dict[str, Any] | None:
    values = vocabulary.values
    bos, number = (
        vocabulary.named().get("bos_token"),
        values.find_id("tokenizer.ggml.bos_token_id"),
    )
    if bos is None or not values.flag("tokenizer.ggml.add_bos_token", default):
        return None
    first = {"SpecialToken": {"id": bos, "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [first, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [
            first,
            {"Sequence": {"id": "A", "type_id": 0}},
            {"Sequence": {"id": "B", "type_id": 1}},
        ],
        "special_tokens": {bos: {"id": bos, "ids": [number], "tokens": [bos]}},
    }


def _stored_merges(values: Values) -> list[list[str]]:
    found = []
    for merge in values.texts("tokenizer.ggml.merges"):
        first, blank, second = merge.partition(" ")
        if not (first and blank and second):
            raise ConfigError(
                f"{values.header.path}: tokenizer.ggml.merges has {merge[:80]!r}, not two tokens"
            )
        found.append([first, second])
    return found


def _found_merges(vocabulary: Vocabulary) -> list[list[str]]:
    """The merges that scores mean: of all pairs, the one whose token has the best score is next."""
    values = vocabulary.values
    scores = values.scores("tokenizer.ggml.scores")
    if values.text("general.architecture") in _MERGED_IN_ORDER:
        scores = [-float(number) for number in range(len(vocabulary.tokens))]
    if len(scores) != len(vocabulary.tokens):
        raise ConfigError(
            f"{values.header.path}: tokenizer.ggml.scores has {len(scores)} entries for "
            f"{len(vocabulary.tokens)} tokens"
        )
    normal = {token: number for number, token in vocabulary.normal()}
    found = [
        (-scores[number], number, place, token)
        for token, number in normal.items()
        for place in range(1, len(token))
        if token[:place] in normal and token[place:] in normal
    ]
    return [[token[:place], token[place:]] for _, _, place, token in sorted(found)]
