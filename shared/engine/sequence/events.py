"""Events of the engine: small records, in order."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from shared.kv.change_log import CacheChange as CacheChange  # part of the engine's interface

if TYPE_CHECKING:
    from torch import Tensor

    from shared.engine.prompt_hidden import PlacedHidden
    from shared.kv.memory import KVMemory
    from shared.request.answer import FinishReason, PositionLogprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """The sequence left the queue and owns blocks for its whole prompt.

    `tables` cover the prompt (and resumed tokens), the last block possibly partial. The first
    `num_cached_tokens` need no computing; of these, blocks past `num_final_tokens` are being filled
    by the step that admitted the sequence. Comes again after a preemption, with other blocks.
    """

    request_id: str
    #: By group of layers that share a block table; all of equal length.
    tables: tuple[tuple[int, ...], ...]
    num_cached_tokens: int
    num_final_tokens: int
    #: Blocks for its hidden states, if it asked for them and there was room.
    hidden: PlacedHidden | None = None
    #: time.monotonic() of the admission; a reader may get the event later.
    at_s: float = field(default_factory=time.monotonic, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Landing:
    """The pool has no room for the sequence; a peer may fill slots of the host tier instead.

    `tables` name these slots, in `memory`, as those of `Admitted` name blocks. The first
    `num_cached_tokens` are in the tier already. `Admitted` follows when the sequence is admitted.
    """

    request_id: str
    memory: KVMemory = field(repr=False, compare=False)
    #: By group of layers that share a block table; all of equal length.
    tables: tuple[tuple[int, ...], ...]
    num_cached_tokens: int
    #: Hidden states are never received so.
    hidden: None = None
    #: time.monotonic() of the event.
    at_s: float = field(default_factory=time.monotonic, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """KV of the first `num_computed_tokens` tokens is final. Only for `hold_blocks` requests."""

    request_id: str
    num_computed_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LayersComputed:
    """Of a step in flight, which ends the prompt: in some layers the KV of all its tokens is final.

    Only for requests with `num_layer_notices`. The step may fail nevertheless.
    """

    request_id: str
    #: By group of layers that share a block table: how many of its layers, the first ones. Those of
    #: a group with states are never complete before the step.
    num_layers: tuple[int, ...]


class NewTokens(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens sampled in one step. With a `finish_reason` it is the sequence's last event.

    A struct, because one is made per sequence and step: it costs a quarter of a frozen dataclass.
    """

    request_id: str
    token_ids: tuple[int, ...]
    logprobs: tuple[PositionLogprobs, ...] = ()
    #: One per token, if requested: the row that its logits came from, float32, little-endian.
    hidden_states: tuple[bytes, ...] = ()
    #: With the first tokens only: one entry per prompt token, None for the first.
    prompt_logprobs: tuple[PositionLogprobs | None, ...] | None = None
    finish_reason: FinishReason | None = None
    #: The stop or end token that ended the answer, if one did; it is in `token_ids`.
    stop_token_id: int | None = None
    #: Drafts that the step checked for this sequence, and how many were accepted.
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptStates:
    """The states that `EngineRequest.rows` asks for. The sequence's last event."""

    request_id: str
    #: float32 [n, hidden] each, on the host, in the order of tokens: by step.
    parts: tuple[Tensor, ...] = field(repr=False)
    #: Tokens that needed no computing.
    num_cached_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """An error ended the sequence. Its last event.

    Its blocks are free, or, with `hold_blocks`, kept until `release` as after any other end.
    """

    request_id: str
    error: Exception


EngineEvent = Admitted | Landing | Computed | LayersComputed | NewTokens | PromptStates | Failed
