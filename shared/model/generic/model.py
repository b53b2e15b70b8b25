"""A CausalModel that is computed by a module of transformers."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from kernels.paged_attention.scores import Scores
from shared.errors import ModelLoadError
from shared.model.generic.attention import NAME, Call, running
from shared.model.generic.linears import buffers_of
from shared.model.mixers import AttentionSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor
    from transformers import PreTrainedModel

    from kernels.kv_write.cache import PagedCache
    from shared.model.attention.base import AttentionBackend, AttentionMetadata
    from shared.model.spec import DecoderSpec, LayerSpec


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
        self._decoder: nn.Module = getattr(module, module.base_model_prefix)
        self._head = _head_of(module)
        self.dtype = module.dtype
        #: Of the layers as the module computes them.
        self.spec = replace(spec, layers=_observe(module, self._decoder, spec))
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
    ) -> Tensor:
        """See `CausalModel.forward`."""
        step = _PagedStep(self.spec, self._places, self._backend, kv_caches, metadata)
        with running(step):
            hidden = _states(self._decoder, token_ids, positions)
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

    @torch.inference_mode()
    def forward_alone(self, token_ids: Tensor) -> Tensor:
        """Return the hidden states that the module computes of one sequence by itself."""
        self._module.set_attn_implementation("eager")
        try:
            positions = torch.arange(len(token_ids), device=token_ids.device)
            return _states(self._decoder, token_ids, positions)
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

    def attend(self, call: Call, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
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


@dataclass(slots=True)
class _Observed:
    """A `Step` that computes nothing, and keeps what was asked for."""

    mixers: dict[int, AttentionSpec] = field(default_factory=dict)
    #: By layer. They are kept, so that memory is not used twice.
    calls: dict[int, Call] = field(default_factory=dict)
    problem: str = ""

    def attend(self, call: Call, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if call.layer in self.mixers:
            self.problem = f"layer {call.layer} attends twice"
        if not call.is_causal:
            self.problem = f"layer {call.layer} also sees later tokens"
        if v.shape[-1] > k.shape[-1] or k.shape[-1] % 2:
            self.problem = f"heads of keys have {k.shape[-1]} numbers, of values {v.shape[-1]}"
        source = self._source_of(call)
        self.calls[call.layer] = call
        self.mixers[call.layer] = AttentionSpec(
            num_heads=q.shape[1],
            num_kv_heads=k.shape[1],
            head_dim=k.shape[2],
            rope=None,
            window=call.window,
            score_scale=call.scale,
            softcap=call.softcap,
            has_sinks=call.sinks is not None,
            kv_source=source,
        )
        return torch.zeros(*q.shape[:2], v.shape[-1], dtype=q.dtype, device=q.device)

    def _source_of(self, call: Call) -> int | None:
        """Return the first layer with the same keys and values, and the same window."""
        for layer, other in self.calls.items():
            if other.keys.data_ptr() == call.keys.data_ptr() and other.window == call.window:
                return layer if other.values.data_ptr() == call.values.data_ptr() else None
        return None


def _observe(
    module: PreTrainedModel, decoder: nn.Module, spec: DecoderSpec
) -> tuple[LayerSpec, ...]:
    """Return the layers as two tokens find them."""
    name = type(module).__name__
    if not module._supports_attention_backend:
        raise ModelLoadError(f"transformers' {name} does not let others compute its attention")
    observed, positions = _Observed(), torch.arange(2, device=module.device)
    try:
        with running(observed), torch.inference_mode():
            _states(decoder, torch.zeros_like(positions), positions)
    except Exception as error:  # others' code
        raise ModelLoadError(f"transformers' {name} cannot run over paged KV: {error}") from error
    if not observed.problem and sorted(observed.mixers) != list(range(spec.num_layers)):
        observed.problem = f"{len(observed.mixers)} of {spec.num_layers} layers attend"
    if observed.problem:
        raise ModelLoadError(f"transformers' {name} cannot run over paged KV: {observed.problem}")
    return tuple(
        replace(layer, mixer=observed.mixers[number]) for number, layer in enumerate(spec.layers)
    )


def _states(decoder: nn.Module, token_ids: Tensor, positions: Tensor) -> Tensor:
    """Return the hidden states [num_tokens, hidden] of a packed batch, as one row of tokens."""
    out: Any = decoder(
        input_ids=token_ids.unsqueeze(0), position_ids=positions.unsqueeze(0), use_cache=False
    )
    hidden: Tensor = out.last_hidden_state[0]
    return hidden


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
