"""What the layers of a transformers module ask of attention."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from shared.errors import ModelLoadError
from shared.model.generic.attention import running
from shared.model.spec.mixers import AttentionSpec

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedModel

    from shared.model.generic.attention import Call
    from shared.model.spec.decoder import DecoderSpec, LayerSpec

_NUM_TOKENS = 2


@dataclass(slots=True)
class _Observed:
    """A `Step` that computes nothing, and keeps what was asked for."""

    mixers: dict[int, AttentionSpec] = field(default_factory=dict)
    #: By layer. They are kept, so that memory is not used twice.
    calls: dict[int, Call] = field(default_factory=dict)
    problem: str = ""

    def mask(self, window: int | None) -> Tensor:
        """See `Step.mask`. A layer that gets it says by it which window it has."""
        return torch.full((1, 1, _NUM_TOKENS, _NUM_TOKENS), float(window or 0))

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
            window=_window_of(call),
            score_scale=call.scale,
            softcap=call.softcap,
            has_sinks=call.sinks is not None,
            kv_source=source,
        )
        return torch.zeros(*q.shape[:2], v.shape[-1], dtype=q.dtype, device=q.device)

    def _source_of(self, call: Call) -> int | None:
        """Return the first layer with the same keys and values, and the same window."""
        window = _window_of(call)
        for layer, other in self.calls.items():
            if other.keys.data_ptr() == call.keys.data_ptr() and _window_of(other) == window:
                return layer if other.values.data_ptr() == call.values.data_ptr() else None
        return None


def _window_of(call: Call) -> int | None:
    """Return the window of the layer's mask, which alone counts where transformers attends.

    Not all modules pass it on beside the mask.

    Raises:
        ModelLoadError: the module has changed the mask.
    """
    if call.mask is None:
        return call.window
    window = float(call.mask.flatten()[0])
    if not window.is_integer() or window < 0 or bool((call.mask != window).any()):
        raise ModelLoadError(f"layer {call.layer} has a mask of its own")
    return int(window) or None


def observe(
    module: PreTrainedModel, decoder: nn.Module, spec: DecoderSpec
) -> tuple[LayerSpec, ...]:
    """Return the layers as some tokens find them.

    Raises:
        ModelLoadError: they cannot be computed over paged KV; says why.
    """
    name = type(module).__name__
    if not module._supports_attention_backend:
        raise ModelLoadError(f"transformers' {name} does not let others compute its attention")
    observed, positions = _Observed(), torch.arange(_NUM_TOKENS, device=module.device)
    try:
        with running(observed), torch.inference_mode():
            states_of(decoder, torch.zeros_like(positions), positions)
    except Exception as error:  # others' code
        raise ModelLoadError(f"transformers' {name} cannot run over paged KV: {error}") from error
    if not observed.problem and sorted(observed.mixers) != list(range(spec.num_layers)):
        observed.problem = f"{len(observed.mixers)} of {spec.num_layers} layers attend"
    if observed.problem:
        raise ModelLoadError(f"transformers' {name} cannot run over paged KV: {observed.problem}")
    return tuple(
        replace(layer, mixer=observed.mixers[number]) for number, layer in enumerate(spec.layers)
    )


def states_of(
    decoder: nn.Module,
    token_ids: Tensor,
    positions: Tensor | None,
    embeddings: Tensor | None = None,
) -> Tensor:
    """Return the hidden states [num_tokens, hidden] of a packed batch, as one row of tokens.

    positions: None: as the module counts them. embeddings: read instead of the tokens' own.
    """
    given = {} if positions is None else {"position_ids": positions.unsqueeze(0)}
    if embeddings is None:
        given["input_ids"] = token_ids.unsqueeze(0)
    else:
        given["inputs_embeds"] = embeddings.unsqueeze(0)
    out: Any = decoder(use_cache=False, **given)
    hidden: Tensor = out.last_hidden_state[0]
    return hidden
