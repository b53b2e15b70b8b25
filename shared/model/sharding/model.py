"""A rank's part of a decoder as PyTorch modules: sums over ranks join the parts.

The modules are those of a whole decoder, with fewer heads and inner numbers. What a layer's mixer
or feed-forward returns is a part of a sum; behind it, every rank has all of the sum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.functional import embedding, linear

from shared.model.attention.registry import get_backend
from shared.model.decoder.causal_lm import CausalLM
from shared.model.decoder.experts import Experts
from shared.model.decoder.mixing.recurrent import Mamba
from shared.model.linear.base import DENSE
from shared.model.linear.fused import FusedLinear
from shared.model.sharding.adapters import cut_adapter
from shared.model.sharding.norms import SharedGroups, WholeNorm
from shared.model.sharding.split import is_counted, kept_heads
from shared.model.spec.mixers import AttentionSpec, MambaSpec, QkNorm

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from shared.model.adapted.base import AdapterWeights
    from shared.model.adapted.linears import PlacedLinears
    from shared.model.attention.base import AttentionBackend
    from shared.model.decoder.decoder_layer import DecoderLayer
    from shared.model.linear.base import LinearMethod
    from shared.model.sharding.shards import Shards
    from shared.model.spec.decoder import DecoderSpec
    from shared.ranks.base import Collective


class ShardedCausalLM(CausalLM):
    """One rank's part of a stage. Its ranks call the same for the same tokens.

    Hidden states and logits are whole on every rank, and the same.
    """

    def __init__(
        self,
        *,
        shards: Shards,
        collective: Collective,
        backend: AttentionBackend,
        dtype: torch.dtype,
        method: LinearMethod = DENSE,
    ) -> None:
        """Build the modules of a rank; see `CausalLM`."""
        super().__init__(spec=shards.spec, backend=backend, dtype=dtype, method=method)
        self.shards = shards
        self.collective = collective
        if collective.size == 1:
            return
        for number, layer in zip(shards.layers, self.decoder_layers, strict=True):
            self._add_up(layer)
            self._share_norms(number, layer)
        for path, module in self.layers.named_modules(prefix="layers"):
            if isinstance(module, FusedLinear) and shards.linear_cut(path).columns is not None:
                module.shared_by = collective

    def whole(self) -> CausalLM:
        """Return the modules of the whole decoder, without memory."""
        return whole_model(self.shards.whole, self.backend_name, self.dtype)

    @property
    def adapter_linears(self) -> Mapping[str, tuple[int, int]]:
        """See `AdaptableModel.adapter_linears`: those of the whole model."""
        return self.shards.whole_sizes(super().adapter_linears)

    def prepare_adapter(self, weights: AdapterWeights) -> PlacedLinears:
        """See `AdaptableModel.prepare_adapter`; weights: those of the whole model."""
        return super().prepare_adapter(cut_adapter(weights, self.shards))

    def _add_up(self, layer: DecoderLayer) -> None:
        """Add up what the layer's mixer and feed-forward return."""
        # A hook costs nothing where there is none.
        layer.attention.register_forward_hook(self._sum_result)
        if isinstance(layer.mlp, Experts) and layer.mlp.spec.is_apart:
            layer.mlp.shared_norm.register_forward_pre_hook(self._sum_input)
            layer.mlp.output_norm.register_forward_pre_hook(self._sum_input)
        elif not isinstance(layer.mlp, nn.Identity):
            layer.mlp.register_forward_hook(self._sum_result)

    def _sum_result(self, _module: nn.Module, _args: tuple[Tensor, ...], result: Tensor) -> None:
        self.collective.all_reduce(result)

    def _sum_input(self, _module: nn.Module, args: tuple[Tensor, ...]) -> None:
        self.collective.all_reduce(args[0])

    def _share_norms(self, number: int, layer: DecoderLayer) -> None:
        """Let norms over what several ranks have be norms of all."""
        own, split = self.shards.whole.layers[number].mixer, self.shards.split
        if isinstance(own, AttentionSpec) and own.qk_norm is QkNorm.WHOLE:
            norm = self.spec.qk_norm(own)
            for name, heads in (("q_norm", own.num_heads), ("k_norm", own.num_kv_heads)):
                present = getattr(layer.attention, name)
                if present is not None:
                    shared = WholeNorm(
                        norm,
                        present.weight,
                        whole_size=heads * own.head_dim,
                        is_counted=name == "q_norm" or is_counted(heads, split),
                        collective=self.collective,
                    )
                    setattr(layer.attention, name, shared)
        if isinstance(own, MambaSpec) and own.num_groups < split.size:
            assert isinstance(layer.attention, Mamba)
            first = kept_heads(own.num_groups, split).start
            layer.attention.normalise = SharedGroups(own.num_groups, first, self.collective)

    def _look_up(self, token_ids: Tensor, weight: Tensor) -> Tensor:
        """Rows of tokens that other ranks have come from them."""
        rows = self.shards.rows
        is_own = (token_ids >= rows.start) & (token_ids < rows.stop)
        found = embedding((token_ids - rows.start).where(is_own, 0), weight)
        found = found.masked_fill_(~is_own.unsqueeze(-1), 0)
        self.collective.all_reduce(found)
        return found

    def _multiply_head(self, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Logits of all ranks' rows, without those behind the vocabulary."""
        every = self.collective.all_gather(linear(hidden, weight, bias))
        return every[:, : self.spec.vocab_size].contiguous()


def whole_model(spec: DecoderSpec, backend_name: str, dtype: torch.dtype) -> CausalLM:
    """Return the modules of a whole decoder, without memory."""
    with torch.device("meta"):
        return CausalLM(spec=spec, backend=get_backend(backend_name), dtype=dtype)
