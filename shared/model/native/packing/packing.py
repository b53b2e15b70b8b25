"""All weights of a model in the native kernels' order."""

from __future__ import annotations

from ctypes import c_void_p
from typing import TYPE_CHECKING

import torch
from torch import nn

from kernels.native.structures import Experts as ExpertsRecord
from kernels.native.structures import Latent as LatentRecord
from kernels.native.structures import LayerInputs as LayerInputsRecord
from kernels.native.structures import WholeHeads
from shared.model.decoder.experts import Experts
from shared.model.decoder.layers import GatedMLP, NoNorm, OffsetRMSNorm, PlainMLP
from shared.model.decoder.mixing.latent import LatentAttention
from shared.model.decoder.mixing.recurrent import RecurrentMixer
from shared.model.linear.scratch import Scratch
from shared.model.native.packing.matrices import STORED, Matrices
from shared.model.native.packing.packed import (
    PackedApart,
    PackedAttention,
    PackedExperts,
    PackedFeedForward,
    PackedInputGate,
    PackedInputs,
    PackedLatent,
    PackedLayer,
    PackedModel,
    PackedNorm,
    PackedRecurrent,
)
from shared.model.native.records.recurrent import make_record
from shared.model.rope_table import rotation_tables
from shared.model.sharding.norms import WholeNorm
from shared.model.spec.feed_forwards import GroupScore, RouterScores

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from shared.model.decoder.causal_lm import CausalLM
    from shared.model.decoder.decoder_layer import DecoderLayer
    from shared.model.decoder.layer_inputs import InputGate, LayerInputs
    from shared.model.decoder.layers import Norm
    from shared.model.decoder.mixing.grouped import Attention
    from shared.model.spec.decoder import DecoderSpec


class Packing(Matrices):
    """The packed weights of one model, and the `LinearMethod` that makes them."""

    def pack(self, model: CausalLM) -> PackedModel:
        """Return all weights of a model loaded with this method; it is empty afterwards."""
        self._scratch = Scratch()
        spec = model.spec
        tables = [self._keep(table) for table in rotation_tables(spec, torch.float32)]
        layers = tuple(self._pack_layer(layer, spec, tables) for layer in model.decoder_layers)
        head = self._head(model)
        embedding = None
        if spec.begins and model.lm_head is not model.embedding:
            embedding = self._keep(model.embedding.detach())
        embedding_kind = STORED[model.embedding.dtype]
        model.lm_head = model.embedding = _nothing()
        return PackedModel(
            layers=layers,
            norm=self._norm(model.norm, spec.hidden_size),
            head=head,
            embedding=embedding,
            embedding_kind=embedding_kind,
            positions=self._positions(model),
            inputs=None if model.inputs is None else self._inputs(model.inputs),
        )

    def _head(self, model: CausalLM) -> int | None:
        stored, bias = model.stored_head, model.lm_head_bias
        if stored is not None:
            model.stored_head = None
            return self._stored(stored, bias)
        if not len(model.lm_head):
            return None
        return self._matrix(model.lm_head, bias, kind=self.head_kind)

    def _pack_layer(
        self, layer: DecoderLayer, spec: DecoderSpec, tables: Sequence[int]
    ) -> PackedLayer:
        mixer, size = layer.attention, spec.hidden_size
        return PackedLayer(
            attention_norm=self._norm(layer.attention_norm, size),
            attention=self._mixer(mixer, tables),
            output=self._linear(mixer.out if isinstance(mixer, RecurrentMixer) else mixer.output),
            attention_output_norm=self._norm(layer.attention_output_norm, size),
            mlp_norm=self._norm(layer.mlp_norm, size),
            feed_forward=self._feed_forward(layer.mlp),
            mlp_output_norm=self._norm(layer.mlp_output_norm, size),
            input_gate=None if layer.input_gate is None else self._input_gate(layer.input_gate),
            scale=None if layer.scale is None else float(layer.scale),
        )

    def _inputs(self, own: LayerInputs) -> PackedInputs:
        table, spec = own.embedding.detach(), own.spec
        own.embedding = _nothing()
        record = LayerInputsRecord(
            table=self._keep(table),
            table_kind=STORED[table.dtype],
            num_layers=own.num_layers,
            size=spec.size,
            # Rounded to the dtype of the weights, as PyTorch's executor does.
            table_factor=float(table.new_tensor(spec.size**0.5)),
            product_factor=own.projection.in_size**-0.5,
        )
        norm = self._norm(own.norm, spec.size)
        return PackedInputs(projection=self._linear(own.projection), norm=norm, record=record)

    def _input_gate(self, own: InputGate) -> PackedInputGate:
        norm = self._norm(own.norm, own.up.out_sizes[0])
        return PackedInputGate(gate=self._linear(own.gate), up=self._linear(own.up), norm=norm)

    def _mixer(
        self, own: Attention | LatentAttention | RecurrentMixer, tables: Sequence[int]
    ) -> PackedAttention | PackedLatent | PackedRecurrent:
        if isinstance(own, RecurrentMixer):
            return PackedRecurrent(record=make_record(own, self._linear, self._keep))
        assert own.rope is not None
        if isinstance(own, LatentAttention):
            return self._latent(own, tables[own.rope])
        return self._attention(own, tables[own.rope])

    def _attention(self, own: Attention, cos_sin: int) -> PackedAttention:
        return PackedAttention(
            qkv=self._linear(own.qkv),
            head_gate=None if own.head_gate is None else self._linear(own.head_gate),
            q_norm=self._norm(own.q_norm, own.spec.query_size),
            k_norm=self._norm(own.k_norm, own.spec.kv_size),
            v_norm=self._norm(own.v_norm, own.spec.head_dim),
            cos_sin=cos_sin,
            sinks=None if own.sinks is None else self._keep(own.sinks.detach().float()),
            whole=_whole_heads(own),
        )

    def _latent(self, own: LatentAttention, cos_sin: int) -> PackedLatent:
        spec, weights = own.spec, own.weights()
        addresses = c_void_p * spec.num_heads
        # A product has the rows of its matrix as columns: those of keys are turned.
        up_keys = addresses(*(self._own_matrix(head.T) for head in weights.up_keys))
        up_values = addresses(*(self._own_matrix(head) for head in weights.up_values))
        record = LatentRecord(
            up_keys=up_keys,
            up_values=up_values,
            latent=spec.kv_rank,
            rope=spec.rope_dim,
            plain=spec.plain_dim,
            value=spec.value_dim,
            query_rank=spec.q_rank or 0,
            norm_eps=spec.norm_eps,
        )
        own.kv_up.weight = _nothing()
        return PackedLatent(
            q_down=None if own.q_down is None else self._linear(own.q_down),
            q_norm=self._norm(own.q_norm, spec.q_rank or 0),
            q_up=self._linear(own.q_up),
            kv_down=self._linear(own.kv_down),
            kv_norm=self._norm(own.kv_norm, spec.kv_rank),
            cos_sin=cos_sin,
            record=record,
            kept=(up_keys, up_values),
        )

    def _feed_forward(self, own: nn.Module) -> PackedFeedForward | PackedExperts | None:
        if isinstance(own, nn.Identity):  # the layer is a mixer alone
            return None
        if isinstance(own, Experts):
            return self._experts(own)
        return self._dense_part(own)

    def _dense_part(self, own: nn.Module) -> PackedFeedForward:
        """A feed-forward without experts."""
        assert isinstance(own, GatedMLP | PlainMLP)
        return PackedFeedForward(up=self._linear(own.entry), down=self._linear(own.down))

    def _experts(self, own: Experts) -> PackedExperts:
        spec, router = own.spec, own.spec.router
        weight: Tensor = own.router.weight
        bias: Tensor | None = own.router.bias
        if own.shared_gate is not None:
            # One more logit; there is no router with a bias beside it.
            weight = torch.cat([weight, own.shared_gate.weight])
            bias = None if bias is None else torch.cat([bias, torch.zeros(1, dtype=bias.dtype)])
        packed: list[PackedFeedForward | None] = [None] * router.num_experts
        for number in spec.own or range(router.num_experts):
            packed[number] = self._dense_part(own.experts[number])
        if own.shared is not None and not spec.is_apart:
            packed.append(self._dense_part(own.shared))
        addresses = c_void_p * len(packed)
        up = addresses(*(None if matrices is None else matrices.up for matrices in packed))
        down = addresses(*(None if matrices is None else matrices.down for matrices in packed))
        bias_of_choice, scales = own.choice_bias, own.expert_scale
        record = ExpertsRecord(
            router=self._matrix(weight, bias, kind=STORED[weight.dtype]),
            choice_bias=None if bias_of_choice is None else self._keep(bias_of_choice.detach()),
            weight_scales=None if scales is None else self._keep(scales.detach().float()),
            up=up,
            down=down,
            num_routed=router.num_experts,
            num_chosen=router.num_chosen,
            num_shared=len(packed) - router.num_experts,
            has_shared_gate=spec.has_shared_gate,
            is_sigmoid=router.scores is RouterScores.SIGMOID,
            is_normalised=router.is_normalised,
            num_groups=router.num_groups,
            num_chosen_groups=router.num_chosen_groups,
            is_best_one=router.group_score is GroupScore.BEST,
            scales_input=spec.scales_input,
            scale=router.scale,
        )
        return PackedExperts(record=record, kept=(up, down), apart=self._apart(own))

    def _apart(self, own: Experts) -> PackedApart | None:
        if not own.spec.is_apart or own.shared is None:
            return None
        size = own.router.in_size
        shared = self._dense_part(own.shared)
        norms = (own.shared_norm, own.input_norm, own.output_norm)
        shared_norm, input_norm, output_norm = (self._norm(norm, size) for norm in norms)
        router_norm = input_norm
        if own.router_scale is not None:
            weight = own.router_scale.detach().float() * size**-0.5
            router_norm = PackedNorm(weight=self._keep(weight))
        return PackedApart(
            shared=shared,
            shared_norm=shared_norm,
            router_norm=router_norm,
            input_norm=input_norm,
            output_norm=output_norm,
        )

    def _positions(self, model: CausalLM) -> int | None:
        learned = model.spec.learned_positions
        if model.positions is None or learned is None:
            return None
        return self._keep(model.positions.detach()[learned.first_row :].float())

    def _norm(self, norm: Norm | None, size: int) -> PackedNorm:
        """The vectors of a norm over at most `size` numbers."""
        if norm is None or isinstance(norm, NoNorm):
            return PackedNorm()
        own = {name: vector.detach().float() for name, vector in norm.named_parameters()}
        weight, bias = own.get("weight"), own.get("bias")
        if weight is None:
            weight = torch.ones(size)
        if isinstance(norm, OffsetRMSNorm) or (isinstance(norm, WholeNorm) and norm.is_offset):
            weight = 1.0 + weight
        return PackedNorm(
            weight=self._keep(weight), bias=None if bias is None else self._keep(bias)
        )


def _whole_heads(own: Attention) -> WholeHeads | None:
    """What norms over the heads of all ranks need; None: a rank's norms are its own."""
    if not isinstance(own.q_norm, WholeNorm):
        return None
    num_keys, counts_keys = 1, False
    if isinstance(own.k_norm, WholeNorm):
        num_keys, counts_keys = own.k_norm.whole_size, own.k_norm.is_counted
    return WholeHeads(num_queries=own.q_norm.whole_size, num_keys=num_keys, counts_keys=counts_keys)


def _nothing() -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.empty(0), requires_grad=False)
