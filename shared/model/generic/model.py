"""A CausalModel that is computed by a module of transformers."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from kernels.paged_attention.scores import Scores
from shared.model.generic.adapted import take_adapters
from shared.model.generic.attention import NAME, running
from shared.model.generic.linears import buffers_of
from shared.model.generic.observing import observe, states_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor
    from transformers import PreTrainedModel

    from kernels.kv_write.cache import PagedCache
    from shared.model.adapted.base import AdapterWeights
    from shared.model.adapted.linears import AdaptedLinears, PlacedLinears
    from shared.model.attention.base import AttentionBackend, AttentionMetadata
    from shared.model.generic.attention import Call
    from shared.model.given_embeds import GivenEmbeds
    from shared.model.spec.decoder import DecoderSpec

#: Tokens whose embeddings are given to learn whether that works.
_NUM_PROBED = 3


class TransformersCausalLM:
    """Hidden states and logits of a module whose attention is ours. Not for two threads at once."""

    def __init__(
        self, module: PreTrainedModel, spec: DecoderSpec, backend: AttentionBackend
    ) -> None:
        """Take the module, which computes on its own device.

        Raises:
            ModelLoadError: its layers cannot be computed over paged KV; says why.
        """
        self._module = module
        self._backend = backend
        #: What computes attention, as `attention_backend` calls it.
        self.backend_name = backend.name
        self._decoder: nn.Module = getattr(module, module.base_model_prefix)
        self._head = _head_of(module)
        self.dtype: torch.dtype = module.dtype
        #: Of the layers as the module computes them.
        self.spec = replace(spec, layers=observe(module, self._decoder, spec))
        #: Made for the first adapter.
        self._adapted: AdaptedLinears | None = None
        self._places = [self.spec.kv_place(layer) for layer in range(self.spec.num_layers)]

    @property
    def is_recordable(self) -> bool:
        """See `CausalModel.is_recordable`."""
        return self.spec.is_recordable

    @property
    def num_weight_bytes(self) -> int:
        """Memory of the weights in bytes."""
        tensors = (*self._module.parameters(), *buffers_of(self._module))
        return sum({tensor.data_ptr(): tensor.nbytes for tensor in tensors}.values())

    @property
    def hidden_dtype(self) -> torch.dtype:
        """Dtype of hidden states in `forward` and `compute_logits`."""
        return self.dtype

    @torch.inference_mode()
    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        kv_caches: Sequence[PagedCache],
        metadata: AttentionMetadata,
        given: GivenEmbeds | None = None,
    ) -> Tensor:
        """See `CausalModel.forward`."""
        step = _PagedStep(self.spec, self._places, self._backend, kv_caches, metadata)
        if self._adapted is not None:
            self._adapted.begin(metadata.adapters, None)
        embeddings = None if given is None else given.placed_in(self.embed(token_ids))
        with running(step):
            hidden = states_of(self._decoder, token_ids, positions, embeddings)
        return hidden if metadata.wanted is None else hidden[metadata.wanted]

    @torch.inference_mode()
    def compute_logits(self, hidden: Tensor) -> Tensor:
        """See `CausalModel.compute_logits`."""
        logits: Tensor = self._head(inputs_embeds=hidden.unsqueeze(0), use_cache=False).logits
        return logits[0].float()

    @torch.inference_mode()
    def embed(self, token_ids: Tensor) -> Tensor:
        """Return the embeddings [n, hidden] of int64 [n]."""
        rows: Tensor = self._module.get_input_embeddings()(token_ids)
        return rows

    @property
    def adapter_linears(self) -> Mapping[str, tuple[int, int]]:
        """See `AdaptableModel.adapter_linears`."""
        return self._taking_adapters().sizes

    def prepare_adapter(self, weights: AdapterWeights) -> PlacedLinears:
        """See `AdaptableModel.prepare_adapter`."""
        return self._taking_adapters().prepare(weights)

    def set_adapter(self, slot: int, weights: AdapterWeights | None) -> None:
        """See `AdaptableModel.set_adapter`."""
        self._taking_adapters().put(slot, {})
        if weights:
            self.prepare_adapter(weights).place(slot)

    def _taking_adapters(self) -> AdaptedLinears:
        """Return the linears that take adapters, looked up once."""
        if self._adapted is None:
            self._adapted = take_adapters(self._module, self._backend.name)
        return self._adapted

    @property
    def embeds_width(self) -> int:
        """See `CausalModel.embeds_width`."""
        table: Any = self._module.get_input_embeddings()
        return int(table.weight.shape[1])

    @property
    def why_no_embeds(self) -> str | None:
        """See `CausalModel.why_no_embeds`."""
        token_ids = torch.arange(_NUM_PROBED, device=self._module.device)
        name = type(self._module).__name__
        try:
            found = self.forward_alone(token_ids, embeddings=self.embed(token_ids))
        except Exception as error:  # noqa: BLE001 others' code
            return f"transformers' {name} does not take them: {error}"
        if not torch.allclose(found, self.forward_alone(token_ids), rtol=1e-2, atol=1e-2):
            return f"transformers' {name} computes something else with them than with tokens"
        return None

    @torch.inference_mode()
    def forward_alone(
        self,
        token_ids: Tensor,
        positions: Tensor | None = None,
        embeddings: Tensor | None = None,
    ) -> Tensor:
        """Return the hidden states that the module computes of one sequence by itself.

        positions: None: as the module counts them. embeddings: read instead of the tokens' own.
        """
        self._module.set_attn_implementation("eager")
        if self._adapted is not None:
            self._adapted.begin(None, None)
        try:
            return states_of(self._decoder, token_ids, positions, embeddings)
        finally:
            self._module.set_attn_implementation(NAME)

    def of_layers(self, numbers: Sequence[int]) -> TransformersCausalLM:
        """Return itself: a module cannot be cut, so that it computes more layers than wanted."""
        return self


class _PagedStep:
    """See `Step`."""

    def __init__(
        self,
        spec: DecoderSpec,
        places: Sequence[tuple[int, int]],
        backend: AttentionBackend,
        kv_caches: Sequence[PagedCache],
        metadata: AttentionMetadata,
    ) -> None:
        self._spec = spec
        self._places = places
        self._backend = backend
        self._kv_caches = kv_caches
        self._metadata = metadata

    def mask(self, window: int | None) -> None:
        """See `Step.mask`. The layers' windows are known."""

    def attend(self, call: Call, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See `Step.attend`."""
        own = self._spec.layers[call.layer].attention
        group, place = self._places[call.layer]
        size = v.shape[-1]
        if size < own.head_dim:
            v = nn.functional.pad(v, (0, own.head_dim - size))
        # The module has rotated queries and keys: here they are rotated by nothing.
        still = torch.ones(len(q), own.head_dim // 2, dtype=q.dtype, device=q.device)
        has_own = own.kv_source is None
        mixed = self._backend.forward(
            q,
            k if has_own else None,
            v if has_own else None,
            torch.cat((still, torch.zeros_like(still)), dim=-1),
            self._kv_caches[group],
            place,
            self._metadata.of_group(group),
            scores=Scores(
                scale=own.scale, window=own.window, softcap=own.softcap, sinks=call.sinks
            ),
            norms=None,
        )
        return mixed[..., :size]


class _Given(nn.Module):
    """A decoder whose states are given: what a module does with them are the logits."""

    @property
    def decoder(self) -> _Given:
        """Itself: some modules call a part of their decoder."""
        return self

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> _States:
        return _States(inputs_embeds)


class _States(tuple[Any, ...]):
    """An output of a decoder with its last states, and None for everything else."""

    __slots__ = ()

    def __new__(cls, hidden: Tensor) -> _States:
        return super().__new__(cls, (hidden,))

    def __getattr__(self, name: str) -> Tensor | None:
        return self[0] if name == "last_hidden_state" else None


def _head_of(module: PreTrainedModel) -> PreTrainedModel:
    """Return the module with a decoder that computes nothing, on the same weights."""
    head = copy.copy(module)
    head._modules = {**module._modules, module.base_model_prefix: _Given()}
    return head
