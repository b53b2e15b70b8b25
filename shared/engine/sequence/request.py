"""Input of the engine: token ids, sampling parameters, and the source of the prompt's KV."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from shared.request.prompt_embeds import identity_of

if TYPE_CHECKING:
    from shared.engine.prompt_hidden import HiddenWish
    from shared.engine.prompt_rows import PromptRows
    from shared.engine.sequence.grammar import Grammar
    from shared.kv.identity import KVIdentity
    from shared.request.adapter_ref import AdapterRef
    from shared.request.prompt_embeds import PromptEmbeds
    from shared.request.sampling_params import SamplingParams


class KVSource(StrEnum):
    """Source of the prompt's KV."""

    #: The engine computes it.
    COMPUTE = "compute"
    #: A peer fills the reserved blocks. The sequence holds them and waits until `complete_transfer`
    #: or `fail_transfer` is called.
    TRANSFER = "transfer"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """One sequence to generate.

    `prompt_token_ids` followed by `resumed_token_ids` is what the KV must cover before the next
    token is sampled; the latter count as output for penalties, `min_tokens` and `max_tokens`
    (a stream that continues after its worker died).
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    #: Embeddings in place of some of the prompt's tokens: `prompt_token_ids` has NO_TOKEN there.
    embeds: PromptEmbeds | None = field(default=None, repr=False)
    resumed_token_ids: tuple[int, ...] = ()
    #: The adapter to compute with; None: the model alone.
    adapter: AdapterRef | None = None
    #: Lower runs first, as in vLLM; the policies priority and urgency use it.
    priority: int = 0
    #: Longest time between two of its tokens: steps with prompts in them are kept shorter, as far
    #: as a block of them per step allows. 0: what the worker prefers.
    max_itl_ms: float = 0.0
    #: Isolates the prefix cache; derived by the router from the tenant, never from the client.
    cache_salt: bytes = b""
    kv_source: KVSource = KVSource.COMPUTE
    #: A prefill for a peer: sample exactly one token with these parameters, whatever `max_tokens`
    #: is, and keep the blocks until `release`, because they are being sent.
    hold_blocks: bool = False
    #: How often it is told at most of layers that are complete before its prompt's last step is
    #: over: see `LayersComputed`.
    num_layer_notices: int = 0
    #: Blocks for the prompt's hidden states, in addition to those for its KV, if enough are free:
    #: with `KVSource.TRANSFER` a peer fills them, with `hold_blocks` the engine.
    hidden: HiddenWish | None = None
    #: States of the prompt that are wanted in place of tokens: the request ends with them.
    rows: PromptRows | None = None
    #: The state of `sampling.grammar` for this request, after its resumed tokens. `GrammarCompiler`
    #: makes it before the request is queued. The engine advances it.
    grammar: Grammar | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        """Draw a seed for a request that samples without one. This is the only place that does."""
        object.__setattr__(self, "sampling", self.sampling.with_seed())

    def without_embeds(self) -> EngineRequest:
        """Return the request without its embeddings, whose owner is the sequence."""
        return self if self.embeds is None else replace(self, embeds=None)

    def identity(self, namespace: bytes) -> KVIdentity:
        """Return all that its blocks depend on besides its tokens."""
        adapter = b"" if self.adapter is None else self.adapter.digest
        return identity_of(namespace, salt=self.cache_salt, adapter=adapter, embeds=self.embeds)
