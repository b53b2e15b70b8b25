"""Settings of speculative decoding: one JSON object, with vLLM's names."""

from __future__ import annotations

from enum import StrEnum
from itertools import pairwise
from typing import Any

import msgspec

from shared.errors import ConfigError

#: vLLM's MAX_SPEC_LEN: more drafts per step than this are a mistake.
MAX_DRAFT_TOKENS = 128


class HandOffPolicy(StrEnum):
    """How a draft comes by its view of a prompt that was computed elsewhere."""

    #: Of a draft model, `rebuild`, as there is no other way to have one; of a head, `transfer`
    #: where that is expected to delay the answer by little, else `none`.
    AUTO = "auto"
    #: A draft model computes its KV from the tokens.
    REBUILD = "rebuild"
    #: A head gets the target's hidden states from the worker that computed them.
    TRANSFER = "transfer"
    #: A draft model does not draft; a head begins with what is generated here.
    NONE = "none"


#: By method, what is possible; other methods do not look at it.
_HAND_OFFS = {
    "draft_model": (HandOffPolicy.AUTO, HandOffPolicy.REBUILD, HandOffPolicy.NONE),
    "eagle": (HandOffPolicy.AUTO, HandOffPolicy.TRANSFER, HandOffPolicy.NONE),
    "eagle3": (HandOffPolicy.AUTO, HandOffPolicy.TRANSFER, HandOffPolicy.NONE),
}


class SpeculationConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `--speculative-config` says. Fields that concern one method are ignored by others."""

    #: ngram, suffix, draft_model, eagle, eagle3, medusa, an entry point of `baton.proposers`, or
    #: custom.
    method: str
    #: Most drafts per sequence and step; `suffix` may do without.
    num_speculative_tokens: int | None = None
    #: Inclusive ranges of running sequences: [first, last, drafts per sequence]. A batch size in no
    #: range gets `num_speculative_tokens`.
    num_speculative_tokens_per_batch_size: tuple[tuple[int, int, int], ...] = ()
    #: Turn speculation off by itself where measurements say that it costs more than it gives, and
    #: let each request's number of drafts follow its acceptance.
    adaptive: bool = True

    # ngram
    #: Shortest and longest n-gram at the end of the tokens that is looked up.
    prompt_lookup_min: int = 2
    prompt_lookup_max: int = 5

    # suffix
    #: Longest match plus draft that is remembered.
    suffix_decoding_max_tree_depth: int = 24
    #: Past requests that are remembered; 0: only the request itself.
    suffix_decoding_max_cached_requests: int = 10_000
    #: A match of n tokens gives at most this times n drafts.
    suffix_decoding_max_spec_factor: float = 1.0
    #: A draft ends where its estimated probability falls below this.
    suffix_decoding_min_token_prob: float = 0.1

    # draft_model, eagle, eagle3, medusa, custom
    #: Directory of the draft's checkpoint.
    model: str | None = None
    load_format: str = "auto"
    dtype: str = "auto"
    quantization: str = "none"
    #: Of the draft's weights with `load_format` dummy.
    seed: int = 0
    #: A `HandOffPolicy`: what becomes of prompts that prefill workers compute.
    hand_off: str = "auto"
    #: With `auto`: the part of the time that computing a prompt takes by which its hidden states
    #: may delay the second token. They are not waited for any longer.
    hand_off_max_delay: float = 0.1
    #: custom: "package.module:Class", called with a `ProposerContext`.
    proposer_class: str | None = None
    #: Whatever else a custom proposer wants to know.
    options: dict[str, Any] = {}

    def __post_init__(self) -> None:
        if self.method == "suffix" and self.num_speculative_tokens is None:
            depth = min(self.suffix_decoding_max_tree_depth, MAX_DRAFT_TOKENS)
            msgspec.structs.force_setattr(self, "num_speculative_tokens", depth)
        for name, ok, rule in self._rules():
            if not ok:
                raise ConfigError(
                    f"speculative_config: {name} must be {rule}, not {getattr(self, name)!r}"
                )

    @property
    def max_draft_tokens(self) -> int:
        """Most drafts that any sequence can get in a step."""
        ranges = self.num_speculative_tokens_per_batch_size
        return max([self.num_speculative_tokens or 0, *(k for _, _, k in ranges)])

    def num_for_batch(self, num_seqs: int) -> int:
        """Most drafts per sequence while so many run."""
        for first, last, num in self.num_speculative_tokens_per_batch_size:
            if first <= num_seqs <= last:
                return num
        return self.num_speculative_tokens or 0

    def _rules(self) -> tuple[tuple[str, bool, str], ...]:
        num = self.num_speculative_tokens
        hand_offs = _HAND_OFFS.get(self.method, tuple(HandOffPolicy))
        ranges = sorted(self.num_speculative_tokens_per_batch_size)
        return (
            ("method", bool(self.method), "a name"),
            (
                "num_speculative_tokens",
                num is not None and 1 <= num <= MAX_DRAFT_TOKENS,
                f"given, and between 1 and {MAX_DRAFT_TOKENS}",
            ),
            (
                "num_speculative_tokens_per_batch_size",
                all(1 <= lo <= hi and 0 <= k <= MAX_DRAFT_TOKENS for lo, hi, k in ranges)
                and all(one[1] < two[0] for one, two in pairwise(ranges)),
                "ranges [first, last, drafts] that do not overlap",
            ),
            (
                "hand_off",
                self.hand_off in hand_offs,
                f"{', '.join(hand_offs)} with method {self.method}",
            ),
            ("hand_off_max_delay", 0 <= self.hand_off_max_delay <= 10, "between 0 and 10"),
            ("prompt_lookup_min", self.prompt_lookup_min >= 1, "at least 1"),
            (
                "prompt_lookup_max",
                self.prompt_lookup_min <= self.prompt_lookup_max <= 64,
                f"between prompt_lookup_min ({self.prompt_lookup_min}) and 64",
            ),
            (
                "suffix_decoding_max_tree_depth",
                2 <= self.suffix_decoding_max_tree_depth <= 256,
                "between 2 and 256",
            ),
            (
                "suffix_decoding_max_cached_requests",
                self.suffix_decoding_max_cached_requests >= 0,
                "at least 0",
            ),
            (
                "suffix_decoding_max_spec_factor",
                0 < self.suffix_decoding_max_spec_factor < 1000,
                "over 0 and below 1000",
            ),
            (
                "suffix_decoding_min_token_prob",
                0 <= self.suffix_decoding_min_token_prob <= 1,
                "between 0 and 1",
            ),
        )


def parse_speculation(text: str) -> SpeculationConfig:
    """Read the JSON object. Raises ConfigError that names the field."""
    try:
        return msgspec.json.decode(text, type=SpeculationConfig)
    except msgspec.DecodeError as error:  # ValidationError is one
        reason = error.__cause__ if isinstance(error.__cause__, ConfigError) else error
        raise ConfigError(f"speculative_config is not usable: {reason}") from error
