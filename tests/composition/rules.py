"""The pairs of values that no run can have: refused by name, or without a meaning together."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from tests.composition.axes import AXES, BY_TRANSFORMERS, STORED_SCALES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.composition.axes import Row

#: An axis and one of its values.
Value = tuple[str, str]
Pair = tuple[Value, Value]


@dataclass(frozen=True, slots=True)
class Rule:
    """These values of two axes do not meet. `refused`: a worker or the router says these words."""

    first: tuple[str, tuple[str, ...]]
    second: tuple[str, tuple[str, ...]]
    reason: str
    refused: str | None = None
    #: Values of a third axis, with which alone they do not meet.
    third: tuple[str, tuple[str, ...]] | None = None

    @property
    def sides(self) -> list[tuple[str, tuple[str, ...]]]:
        """The axes and their values."""
        both = [self.first, self.second]
        return both if self.third is None else [*both, self.third]

    def breaks(self, row: Row) -> bool:
        """Whether a row has what does not meet."""
        return all(row[axis] in values for axis, values in self.sides)

    def forbids(self, one: Value, other: Value) -> bool:
        """Whether the two values, in any order, are such a pair."""
        if self.third is not None:
            return False
        return (_is_among(one, self.first) and _is_among(other, self.second)) or (
            _is_among(one, self.second) and _is_among(other, self.first)
        )


#: Workers whose ranks divide each layer, on either side.
DIVIDED = ("ranks, prefill : decode", ("2 : 1", "1 : 2", "2 : 2"))
#: Decode workers whose ranks have some of the layers each.
STAGED = ("ranks, prefill : decode", ("1 : 2 stages",))
#: Workers of several ranks of any kind.
SPREAD = ("ranks, prefill : decode", (*DIVIDED[1], *STAGED[1]))
#: Six heads of 80: those of a rank end in the midst of a group of scales.
_UNEVEN_HEADS = (
    "llama",
    "gemma3, two groups",
    "llama4, chunks",
    "gemma4, shared KV",
    "qwen3_5, states",
    "qwen3_moe, experts",
)
_ROUNDED = ("stored W8A8", "stored FP8 blocks", "stored MXFP6")
_NO_STATES = "which TransformersCausalLM does not give"
RULES = (
    Rule(
        ("weights", ("GGUF",)),
        (
            "family",
            (
                "llama4, chunks",
                "gemma4, shared KV",
                "qwen3_5, states",
                "deepseek_v3, latent",
                BY_TRANSFORMERS,
            ),
        ),
        "llama.cpp's names of these models are not known here",
        refused="general.architecture .* is not supported",
    ),
    Rule(
        ("executor", ("transformers",)),
        ("family", ("qwen3_5, states",)),
        "transformers' modules keep states where we cannot move them",
        refused="does not let others compute its attention",
    ),
    Rule(
        ("executor", ("transformers",)),
        ("family", ("llama4, chunks",)),
        "the attention that transformers calls knows windows and no chunks",
        refused="layer_types has chunked_attention",
    ),
    Rule(
        ("executor", ("native", "torch")),
        ("family", (BY_TRANSFORMERS,)),
        "the model type has no description of ours",
        refused="architecture NemotronForCausalLM is not supported",
    ),
    Rule(
        ("KV format", (STORED_SCALES,)),
        ("family", ("deepseek_v3, latent",)),
        "rows of latent attention have a scale of their own, or none",
        refused="rows of latent attention are not kept so",
    ),
    Rule(
        ("KV format", (STORED_SCALES,)),
        ("weights", ("GGUF",)),
        "a GGUF file has no such scales",
        refused="has no scales for keys and values",
    ),
    Rule(
        ("KV format", (STORED_SCALES,)),
        ("family", (BY_TRANSFORMERS,)),
        "transformers' module computes it, which gets no scales",
        # Other executors have no description of the model.
        refused="has no scales for keys and values|NemotronForCausalLM is not supported",
    ),
    Rule(
        ("executor", ("transformers",)),
        ("speculation", ("eagle3",)),
        "states between the layers stay in transformers' modules",
        refused=_NO_STATES,
    ),
    Rule(
        ("family", (BY_TRANSFORMERS,)),
        ("speculation", ("eagle3",)),
        "transformers' module computes it, which keeps states between the layers",
        refused=_NO_STATES,
    ),
    Rule(
        ("speculation", ("mtp",)),
        (
            "family",
            (
                "llama",
                "mistral, window",
                "gemma3, two groups",
                "llama4, chunks",
                "gemma4, shared KV",
                "qwen3_moe, experts",
                BY_TRANSFORMERS,
            ),
        ),
        "their checkpoints have no layer that predicts further tokens",
        refused="no layer that predicts further tokens|NemotronForCausalLM is not supported",
    ),
    Rule(
        ("speculation", ("mtp",)),
        ("weights", ("GGUF",)),
        "llama.cpp's names of the models that have such a layer are not known here",
        refused="general.architecture .* is not supported",
    ),
    Rule(
        ("request", ("beams",)),
        ("grammar", ("regex", "JSON, xgrammar", "JSON, guidance", "JSON behind a thought")),
        "beams are scored by raw log probabilities, which a mask would change",
        refused="beam search",
    ),
    Rule(
        ("prefix from", ("prefill's cache",)),
        ("prefill : decode", ("1 : 1", "2 : 1", "0 : 1")),
        "the one decode worker has what its prefill worker has",
    ),
    Rule(
        ("request", ("prompt scores",)),
        ("prefix from", ("decode's cache", "prefill's cache", "offload")),
        "a prompt is scored while it is computed: a prefix that is cached is computed anew",
    ),
    Rule(
        ("prefix from", ("offload",)),
        ("offload", ("none",)),
        "there is no tier to load from",
    ),
    Rule(
        ("event", ("prefill killed",)),
        ("prefill : decode", ("0 : 1",)),
        "there is no prefill worker",
    ),
    Rule(
        ("event", ("decode killed", "decode drained")),
        ("prefill : decode", ("0 : 1",)),
        "no second worker could go on",
    ),
    Rule(
        SPREAD,
        ("executor", ("transformers",)),
        "transformers' modules are not divided",
        refused="a module of transformers is not divided among ranks",
    ),
    Rule(
        SPREAD,
        ("family", (BY_TRANSFORMERS,)),
        "transformers' module computes it, which is not divided",
        refused="a module of transformers is not divided|NemotronForCausalLM is not supported",
    ),
    Rule(
        SPREAD,
        ("weights", ("fp8",)),
        "they are made of dense ones, and a part's rounding is not the whole's",
        refused="ranks narrow weights to int8 or int4 in the native",
    ),
    Rule(
        SPREAD,
        ("weights", ("int8", "int4")),
        "PyTorch makes them of dense ones, and a part's rounding is not the whole's",
        refused="ranks narrow weights to int8 or int4 in the native kernels alone",
        third=("executor", ("torch",)),
    ),
    Rule(
        DIVIDED,
        ("weights", ("stored int4", "stored FP8 blocks", "stored MXFP6", "GGUF")),
        "a rank's inputs would divide a group that shares a scale; other sizes of heads do not",
        refused="inputs of rank . divide groups of .. that share a scale",
        third=("family", _UNEVEN_HEADS),
    ),
    Rule(
        DIVIDED,
        ("weights", ("int4",)),
        "a rank's inputs would divide a group that shares a scale; other sizes of heads do not",
        refused="inputs of rank . divide groups of .. that share a scale",
        third=("family", (*_UNEVEN_HEADS, "deepseek_v3, latent")),
    ),
    Rule(
        SPREAD,
        ("speculation", ("draft model", "eagle", "eagle3", "medusa", "mtp")),
        "what guesses needs the whole model on one rank",
        refused="needs the whole model on one rank",
    ),
    Rule(
        STAGED,
        ("family", ("gemma4, shared KV",)),
        "its layers have inputs of their own, and read keys and values of other layers",
        refused="have inputs that are looked up by tokens",
    ),
    Rule(
        STAGED,
        ("family", ("qwen3_5, states",)),
        "the last stage alone learns which drafts were rejected, and the others keep states, too",
        refused="do not put back states behind rejected drafts",
        third=("speculation", ("ngram", "suffix")),
    ),
    Rule(
        ("ranks, prefill : decode", ("2 : 1", "2 : 2")),
        ("prefill : decode", ("0 : 1",)),
        "there is no prefill worker",
    ),
)

#: A step of another batch, or on other ranks, may choose otherwise between tokens that are about as
#: likely.
INEXACT = (
    Rule(
        ("executor", ("torch", "transformers")),
        ("weights", ("bfloat16", "int8", "fp8", *_ROUNDED)),
        "the last bits of PyTorch's sums depend on the rows beside them, and rounding to bfloat16 "
        "or 8 bits makes that visible: tokens are equal up to the first near tie",
    ),
    Rule(
        DIVIDED,
        ("weights", ("bfloat16", "int8", *_ROUNDED)),
        "ranks add up their parts of a sum, and rounding to bfloat16 or 8 bits makes the other "
        "order visible: tokens are equal up to the first near tie",
    ),
)

#: A log probability may differ by as much as the engine differs from itself: see `near_ties`.
ROUNDED_KV = (
    Rule(
        ("executor", ("torch", "transformers")),
        ("KV format", ("int8", "fp8", STORED_SCALES)),
        "of PyTorch's sums that lie between two numbers of 8 bits the last bit says which one is "
        "stored: tokens are equal, and a log probability differs by no more than one engine's does "
        "if all that is so near to a tie is rounded up, or down; never below 0.001",
    ),
)


def is_exact(row: Row) -> bool:
    """Whether every token must be that of one engine."""
    return not any(rule.breaks(row) for rule in INEXACT)


def rounds_kv(row: Row) -> bool:
    """Whether a last bit may say which number of 8 bits is stored."""
    return any(rule.breaks(row) for rule in ROUNDED_KV)


def _is_among(value: Value, some: tuple[str, tuple[str, ...]]) -> bool:
    return value[0] == some[0] and value[1] in some[1]


def rule_of(one: Value, other: Value) -> Rule | None:
    """The rule that keeps two values apart."""
    return next((rule for rule in RULES if rule.forbids(one, other)), None)


def pairs_of(row: Row) -> Iterator[Pair]:
    """All pairs of values in a row, in the order of the axes."""
    return combinations(row.items(), 2)


def all_pairs() -> Iterator[Pair]:
    """Every pair of values of two axes."""
    for (first, values), (second, others) in combinations(AXES.items(), 2):
        for value in values:
            for other in others:
                yield (first, value), (second, other)
