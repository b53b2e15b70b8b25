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
    """How a draft gets its state of a prompt that was computed elsewhere."""

    #: For a draft model `rebuild`, its only way; for a head `transfer` where that is expected to
    #: delay the answer by little, else `none`.
    AUTO = "auto"
    #: A draft model computes its KV from the tokens.
    REBUILD = "rebuild"
    #: A head gets the target's hidden states from the worker that computed them.
    TRANSFER = "transfer"
    #: A draft model does not draft; a head begins with tokens generated here.
    NONE = "none"


#: By method: the possible policies; other methods ignore the setting.
_HAND_OFFS = {
    "draft_model": (HandOffPolicy.AUTO, HandOffPolicy.REBUILD, HandOffPolicy.NONE),
    "eagle": (HandOffPolicy.AUTO, HandOffPolicy.TRANSFER, HandOffPolicy.NONE),
    "eagle3": (HandOffPolicy.AUTO, HandOffPolicy.TRANSFER, HandOffPolicy.NONE),
    "mtp": (HandOffPolicy.AUTO, HandOffPolicy.TRANSFER, HandOffPolicy.NONE),
}
#: Methods whose draft has a checkpoint of its own.
_WITH_MODEL = frozenset({"draft_model", "eagle", "eagle3", "medusa"})
#: Methods that guess from the tokens of requests alone.
WITHOUT_MODEL = ("ngram", "suffix")
#: What vLLM takes as a model in place of the method.
_NGRAM = frozenset({"ngram", "[ngram]"})
#: vLLM's older names of `mtp`, by family.
_OLDER = tuple(
    f"{family}_mtp" for family in ("deepseek", "glm4_moe", "glm4_moe_lite", "qwen3_next", "qwen3_5")
)


class SpeculationConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The value of `--speculative-config`. Each method ignores fields of other methods."""

    #: ngram, suffix, draft_model, eagle, eagle3, medusa, mtp (or one of its older names), an entry
    #: point of `baton.proposers`, or custom.
    method: str = "draft_model"
    #: Maximum of drafts per sequence and step; `suffix` may use fewer.
    num_speculative_tokens: int | None = None
    #: Inclusive ranges of running sequences: [first, last, drafts per sequence]. A batch size in no
    #: range gets `num_speculative_tokens`.
    num_speculative_tokens_per_batch_size: tuple[tuple[int, int, int], ...] = ()
    #: Turn speculation off automatically where measurements show that it costs more than it gains,
    #: and let each request's number of drafts follow its acceptance.
    adaptive: bool = True

    # ngram
    #: Shortest and longest n-gram at the end of the tokens that is looked up.
    prompt_lookup_min: int = 2
    prompt_lookup_max: int = 5

    # suffix
    #: Maximum length of match plus draft that is kept.
    suffix_decoding_max_tree_depth: int = 24
    #: Number of past requests that are kept; 0: only the request itself.
    suffix_decoding_max_cached_requests: int = 10_000
    #: A match of n tokens yields at most this factor times n drafts.
    suffix_decoding_max_spec_factor: float = 1.0
    #: A draft ends where its estimated probability falls below this.
    suffix_decoding_min_token_prob: float = 0.1

    # draft_model, eagle, eagle3, medusa, custom
    #: Directory of the draft's checkpoint.
    model: str | None = None
    load_format: str = "auto"
    dtype: str = "auto"
    quantization: str = "none"
    #: Seed of the draft's weights with `load_format` dummy.
    seed: int = 0
    #: A `HandOffPolicy`: the draft's state of prompts that prefill workers compute.
    hand_off: str = "auto"
    #: With `auto`: maximum delay of the second token by a prompt's hidden states, as a part of the
    #: time that computing the prompt takes. They are not waited for any longer.
    hand_off_max_delay: float = 0.1
    #: custom: "package.module:Class", called with a `ProposerContext`.
    proposer_class: str | None = None
    #: Further options of a custom proposer.
    options: dict[str, Any] = {}

    def __post_init__(self) -> None:
        if self.model in _NGRAM and self.method == "draft_model":
            msgspec.structs.force_setattr(self, "method", "ngram")
        if self.method in _OLDER:
            msgspec.structs.force_setattr(self, "method", "mtp")
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
        """Maximum of drafts that any sequence can get in a step."""
        ranges = self.num_speculative_tokens_per_batch_size
        return max([self.num_speculative_tokens or 0, *(k for _, _, k in ranges)])

    def num_for_batch(self, num_seqs: int) -> int:
        """Return the maximum of drafts per sequence at this number of running sequences."""
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
                "model",
                self.method not in _WITH_MODEL or bool(self.model),
                f"a directory with method {self.method}",
            ),
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
            *self._suffix_rules(),
        )

    def _suffix_rules(self) -> tuple[tuple[str, bool, str], ...]:
        return (
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
    """Parse the JSON object.

    Raises:
        ConfigError: a field is wrong; names it.
    """
    try:
        return msgspec.json.decode(text, type=SpeculationConfig)
    except msgspec.DecodeError as error:  # ValidationError is one
        reason = error.__cause__ if isinstance(error.__cause__, ConfigError) else error
        raise ConfigError(f"speculative_config is not usable: {reason}") from error
