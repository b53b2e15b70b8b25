"""What a family's checkpoints call the tensors of a decoder, and how they arrange them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from shared.model.families.latent import latent_linears, latent_norms
from shared.model.families.parts import Linear, recurrent_linears, recurrent_values
from shared.model.rope import head_order
from shared.model.spec.feed_forwards import ExpertsSpec
from shared.model.spec.mixers import AttentionSpec, LatentAttentionSpec, QkNorm
from shared.model.spec.norms import PLACES
from shared.model.weight_map import (
    EMBEDDING,
    HEAD,
    HEAD_BIAS,
    LAYERS,
    NORM,
    NORM_BIAS,
    POSITIONS,
    Kind,
    Stored,
    WeightPart,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shared.model.spec.decoder import DecoderSpec, LayerInputsSpec, LayerSpec
    from shared.model.spec.feed_forwards import FeedForwardSpec, RouterSpec
    from shared.model.spec.mixers import Mixer
    from shared.model.spec.norms import NormSpec
    from shared.model.weight_map import WeightMap


#: By part of a layer, as most families name it.
LLAMA_PARTS: Mapping[str, str] = {
    "attention_norm": "input_layernorm",
    "attention.qkv": "self_attn.q_proj self_attn.k_proj self_attn.v_proj",
    "attention.q_norm": "self_attn.q_norm",
    "attention.k_norm": "self_attn.k_norm",
    "attention.output": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "mlp.gate_up": "mlp.gate_proj mlp.up_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
}
#: Of experts; {} is an expert's number. A name without it is of one tensor with all experts.
EXPERT_PARTS: Mapping[str, str] = {
    "attention.sinks": "self_attn.sinks",
    "mlp.router": "mlp.gate",
    "mlp.choice_bias": "mlp.gate.e_score_correction_bias",
    "mlp.experts.gate_up": "mlp.experts.{}.gate_proj mlp.experts.{}.up_proj",
    "mlp.experts.down": "mlp.experts.{}.down_proj",
    "mlp.shared.gate_up": "mlp.shared_experts.gate_proj mlp.shared_experts.up_proj",
    "mlp.shared.down": "mlp.shared_experts.down_proj",
    "mlp.shared_gate": "mlp.shared_expert_gate",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Naming:
    """The names of a family's tensors, without `.weight` and `.bias`."""

    embedding: str = "model.embed_tokens"
    positions: str = ""
    project_in: str = ""
    project_out: str = ""
    #: Of the inputs of layers: the table, the projection and its norm.
    inputs: tuple[str, str, str] = ("", "", "")
    norm: str = "model.norm"
    head: str = "lm_head"
    #: What the names of a layer's parts begin with; {} is the layer's number.
    layer: str = "model.layers.{}."
    #: By part of a layer. A part of several projections has a name for each, separated by blanks,
    #: or one name for all of them.
    parts: Mapping[str, str] = field(default_factory=lambda: {**LLAMA_PARTS, **EXPERT_PARTS})
    #: The weights of the layers' linears are stored as [in, out].
    is_transposed: bool = False
    #: One tensor of queries, keys and values has, for each key/value head in turn, the rows of its
    #: query heads, of its key, of its value. Otherwise all queries come first, then all keys.
    is_grouped: bool = False
    #: The tensors of all experts are [in, out].
    are_experts_transposed: bool = False
    #: In those, gates and ups take turns. Otherwise all gates come first.
    are_experts_interleaved: bool = False
    #: Of the gated delta rule: a tensor has, for each key head in turn, the rows of its query, of
    #: its key, and of the values and gates of its states. Otherwise all queries come first.
    are_deltas_grouped: bool = False

    def names(self, spec: DecoderSpec) -> WeightMap:
        """See `Family.names`."""
        rows = (spec.vocab_size, spec.embedding_size or spec.hidden_size)
        found = {f"{self.embedding}.weight": Stored(EMBEDDING, rows)}
        if spec.learned_positions is not None:
            shape = (spec.learned_positions.num_rows, spec.hidden_size)
            found[f"{self.positions}.weight"] = Stored(POSITIONS, shape)
        if spec.embedding_size is not None:
            shape = (spec.hidden_size, spec.embedding_size)
            found[f"{self.project_in}.weight"] = Stored(WeightPart("project_in"), shape)
            found[f"{self.project_out}.weight"] = Stored(WeightPart("project_out"), shape[::-1])
        if spec.layer_inputs is not None:
            found |= self._inputs(spec, spec.layer_inputs)
        if spec.has_final_norm and spec.norm.has_weight:
            found[f"{self.norm}.weight"] = Stored(NORM, (spec.hidden_size,))
        if spec.has_final_norm and spec.norm.has_bias:
            found[f"{self.norm}.bias"] = Stored(NORM_BIAS, (spec.hidden_size,))
        found[f"{self.head}.weight"] = Stored(HEAD, rows)
        if spec.has_head_bias:
            found[f"{self.head}.bias"] = Stored(HEAD_BIAS, rows[:1])
        for number in range(spec.num_layers):
            stored, module = self.layer.format(number), f"{LAYERS}.{number}."
            found |= self.layer_names(spec, number, stored=stored, module=module)
        return found

    def _inputs(self, spec: DecoderSpec, own: LayerInputsSpec) -> dict[str, Stored]:
        table, projection, norm = (f"{name}.weight" for name in self.inputs)
        size = spec.num_layers * own.size
        part = WeightPart("inputs", Kind.EMBEDDING)
        return {
            table: Stored(part, (own.num_rows, size)),
            projection: Stored(WeightPart("inputs.projection"), (size, spec.hidden_size)),
            norm: Stored(WeightPart("inputs.norm"), (own.size,)),
        }

    def layer_names(
        self,
        spec: DecoderSpec,
        number: int,
        *,
        stored: str,
        module: str = "",
        input_size: int | None = None,
    ) -> dict[str, Stored]:
        """Return the tensors of one layer, whose names begin with `stored`.

        module: what the paths of the layer's modules begin with; input_size: numbers per token that
        queries, keys and values are computed from, by default the hidden size.
        """
        layer = spec.layers[number]
        found = {
            f"{name}.{part.kind.value}": Stored(part, shape, rows=rows)
            for name, part, shape, rows in self._norms(layer, spec, module)
        }
        for linear in self._linears(layer, spec, input_size):
            found |= dict(self._linear(linear, module, layer.mixer))
        found |= self._values(layer, spec.hidden_size, module)
        return {f"{stored}{name}": tensor for name, tensor in found.items()}

    def _linears(
        self, layer: LayerSpec, spec: DecoderSpec, input_size: int | None
    ) -> Iterator[Linear]:
        mixer, own, hidden = layer.mixer, layer.feed_forward, spec.hidden_size
        if isinstance(mixer, AttentionSpec):
            yield from _attention(mixer, spec, input_size)
        elif isinstance(mixer, LatentAttentionSpec):
            yield from latent_linears(mixer, hidden)
        else:
            yield from recurrent_linears(mixer, hidden, are_grouped=self.are_deltas_grouped)
        if isinstance(own, ExpertsSpec):
            yield from _experts(own, hidden)
        elif own is not None:
            yield from _feed_forward(own, hidden)
        if spec.layer_inputs is not None:
            yield from _input_gate(spec.layer_inputs, hidden)

    def _router_values(self, own: RouterSpec, hidden: int, module: str) -> dict[str, Stored]:
        num = own.num_experts
        return {
            self.parts[f"mlp.{kind.value}"]: Stored(WeightPart(module, kind), (size,))
            for has, kind, size in (
                (own.has_choice_bias, Kind.CHOICE_BIAS, num),
                (own.has_input_scale, Kind.ROUTER_SCALE, hidden),
                (own.has_expert_scale, Kind.EXPERT_SCALE, num),
            )
            if has
        }

    def _values(self, layer: LayerSpec, hidden: int, module: str) -> dict[str, Stored]:
        """The tensors of a layer that neither products nor norms use."""
        mixer, own = layer.mixer, layer.feed_forward
        found: dict[str, Stored] = {}
        if isinstance(mixer, AttentionSpec):
            if mixer.has_sinks:
                sinks = WeightPart(f"{module}attention", Kind.SINKS)
                found[self.parts["attention.sinks"]] = Stored(sinks, (mixer.num_heads,))
        elif not isinstance(mixer, LatentAttentionSpec):
            found |= recurrent_values(mixer, self.parts, module)
        if isinstance(own, ExpertsSpec):
            found |= self._router_values(own.router, hidden, f"{module}mlp")
        if layer.has_scale:
            scale = WeightPart(module.removesuffix("."), Kind.SCALE)
            found[self.parts["scale"]] = Stored(scale, (1,))
        return found

    def _norms(
        self, layer: LayerSpec, spec: DecoderSpec, module: str
    ) -> Iterator[tuple[str, WeightPart, tuple[int, ...], Sequence[int] | None]]:
        for part in PLACES[layer.norms]:
            yield from self._norm(part, spec.norm, module, (spec.hidden_size,), None)
        own = layer.feed_forward
        further = ["input_gate.norm"] if spec.layer_inputs is not None else []
        if isinstance(own, ExpertsSpec) and own.is_apart:
            further += ["mlp.input_norm", "mlp.output_norm", "mlp.shared_norm"]
        for part in further:
            yield from self._norm(part, spec.norm, module, (spec.hidden_size,), None)
        mixer = layer.mixer
        if isinstance(mixer, LatentAttentionSpec):
            for part, norm, size in latent_norms(mixer):
                yield from self._norm(part, norm, module, (size,), None)
        if not isinstance(mixer, AttentionSpec) or mixer.qk_norm is None:
            return
        order = head_order(mixer.rope) if mixer.rope is not None else None
        norm = spec.qk_norm(mixer)
        normed = [("q_norm", mixer.num_heads), ("k_norm", mixer.num_kv_heads)]
        for part, num_heads in normed[: len(mixer.projection_sizes)]:
            starts, shape = _qk_shape(mixer.qk_norm, num_heads, mixer.head_dim)
            rows = None if order is None else _rows(starts, order)
            yield from self._norm(f"attention.{part}", norm, module, shape, rows)

    def _norm(
        self,
        part: str,
        norm: NormSpec,
        module: str,
        shape: tuple[int, ...],
        rows: Sequence[int] | None,
    ) -> Iterator[tuple[str, WeightPart, tuple[int, ...], Sequence[int] | None]]:
        if norm.has_weight:
            yield self.parts[part], WeightPart(f"{module}{part}"), shape, rows
        if norm.has_bias:
            yield self.parts[part], WeightPart(f"{module}{part}", Kind.BIAS), shape, rows

    def _linear(self, linear: Linear, module: str, mixer: Mixer) -> Iterator[tuple[str, Stored]]:
        # A layer without keys or values of its own lacks their projections.
        projections = self.parts[linear.part].split()[: len(linear.out_sizes)]
        if linear.num_experts and "{}" in projections[0]:
            for number in range(linear.num_experts):
                names = [name.format(number) for name in projections]
                one = replace(linear, path=linear.module.format(number), num_experts=0)
                yield from self._projections(names, one, module, mixer)
        else:
            yield from self._projections(projections, linear, module, mixer)

    def _projections(
        self, names: Sequence[str], linear: Linear, module: str, mixer: Mixer
    ) -> Iterator[tuple[str, Stored]]:
        path = f"{module}{linear.module}"
        if len(names) == len(linear.out_sizes):
            for index, (name, size) in enumerate(zip(names, linear.out_sizes, strict=True)):
                rows = linear.rows[index] if linear.rows else None
                yield from self._tensors(name, path, index, size, linear, rows)
        else:
            (name,) = names
            fused = linear.fused_rows
            if linear.is_qkv and isinstance(mixer, AttentionSpec):
                fused = _fused_rows(mixer, is_grouped=self.is_grouped)
            size = sum(linear.out_sizes)
            if linear.num_experts and self.are_experts_interleaved:
                fused = (*range(0, size, 2), *range(1, size, 2))
            yield from self._tensors(name, path, None, size, linear, fused)

    def _tensors(
        self,
        name: str,
        path: str,
        index: int | None,
        size: int,
        linear: Linear,
        rows: Sequence[int] | None,
    ) -> Iterator[tuple[str, Stored]]:
        stacked = (linear.num_experts,) if linear.num_experts else ()
        turned = self.are_experts_transposed if stacked else self.is_transposed
        shape = (linear.in_size, size) if turned else (size, linear.in_size)
        own: dict[str, Any] = {"rows": rows, "num_stacked": linear.num_experts or None}
        weight, bias = WeightPart(path, index=index), WeightPart(path, Kind.BIAS, index)
        yield f"{name}.weight", Stored(weight, (*stacked, *shape), is_transposed=turned, **own)
        if linear.bias:
            yield f"{name}.bias", Stored(bias, (*stacked, size), **own)


def _attention(mixer: AttentionSpec, spec: DecoderSpec, input_size: int | None) -> Iterator[Linear]:
    sizes = mixer.projection_sizes
    order = head_order(mixer.rope) if mixer.rope is not None else None
    rows: tuple[Sequence[int] | None, ...] = ()
    if order is not None or mixer.has_gate:
        each = order or range(mixer.head_dim)
        # A head's gate is stored behind its query.
        step = mixer.head_dim * (2 if mixer.has_gate else 1)
        queries = _rows(range(0, mixer.num_heads * step, step), each)
        if mixer.has_gate:
            gates = range(mixer.head_dim, mixer.num_heads * step, step)
            queries = (*queries, *_rows(gates, range(mixer.head_dim)))
        keys = _rows(range(0, mixer.kv_size, mixer.head_dim), each)
        rows = (queries, keys, None)[: len(sizes)]
    in_size = input_size or spec.hidden_size
    yield Linear("attention.qkv", sizes, in_size, mixer.qkv_bias, rows, is_qkv=True)
    if mixer.has_head_gates:
        yield Linear("attention.head_gate", (mixer.num_heads,), in_size, bias=False)
    hidden = (spec.hidden_size,)
    yield Linear("attention.output", hidden, mixer.query_size, mixer.output_bias)


def _feed_forward(
    own: FeedForwardSpec, hidden: int, *, at: str = "mlp", path: str = "", num_experts: int = 0
) -> Iterator[Linear]:
    up = "gate_up" if own.is_gated else "up"
    sizes = (own.inner_size,) * (2 if own.is_gated else 1)
    for name, out_sizes, in_size in (
        (up, sizes, hidden),
        ("down", (hidden,), own.inner_size),
    ):
        yield Linear(
            f"{at}.{name}",
            out_sizes,
            in_size,
            own.bias,
            path=f"{path or at}.{name}",
            num_experts=num_experts,
        )


def _experts(own: ExpertsSpec, hidden: int) -> Iterator[Linear]:
    num = own.router.num_experts
    yield Linear("mlp.router", (num,), hidden, own.router.has_bias)
    size = own.latent_size or hidden
    yield from _feed_forward(
        own.expert, size, at="mlp.experts", path="mlp.experts.{}", num_experts=num
    )
    if own.latent_size is not None:
        yield Linear("mlp.latent_down", (size,), hidden, own.has_latent_bias)
        yield Linear("mlp.latent_up", (hidden,), size, own.has_latent_bias)
    if own.shared is not None:
        yield from _feed_forward(own.shared, hidden, at="mlp.shared")
    if own.has_shared_gate:
        yield Linear("mlp.shared_gate", (1,), hidden, bias=False)


def _input_gate(own: LayerInputsSpec, hidden: int) -> Iterator[Linear]:
    yield Linear("input_gate.gate", (own.size,), hidden, bias=False)
    yield Linear("input_gate.up", (hidden,), own.size, bias=False)


def _fused_rows(mixer: AttentionSpec, *, is_grouped: bool) -> Sequence[int] | None:
    """Which stored row is each row of queries, keys and values; None: they are as stored."""
    size, num_kv = mixer.head_dim, mixer.num_kv_heads
    group = mixer.num_heads // num_kv
    order = head_order(mixer.rope) if mixer.rope is not None else None
    if order is None and not is_grouped:
        return None
    heads: tuple[Sequence[int], Sequence[int], Sequence[int]]
    if is_grouped:
        step = group + 2
        heads = (
            [head // group * step + head % group for head in range(mixer.num_heads)],
            [kv * step + group for kv in range(num_kv)],
            [kv * step + group + 1 for kv in range(num_kv)],
        )
    else:
        first, end = mixer.num_heads, mixer.num_heads + num_kv
        heads = range(first), range(first, end), range(end, end + num_kv)
    orders = (order or range(size), order or range(size), range(size))
    return tuple(
        row
        for own, each in zip(heads, orders, strict=True)
        for row in _rows([head * size for head in own], each)
    )


def _rows(starts: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    return tuple(start + row for start in starts for row in order)


def _qk_shape(over: QkNorm, num_heads: int, head_dim: int) -> tuple[Sequence[int], tuple[int, ...]]:
    """Where heads start in the weight of a norm of queries or keys, and its shape as stored."""
    if over is QkNorm.HEAD:
        return (0,), (head_dim,)
    starts = range(0, num_heads * head_dim, head_dim)
    return starts, (num_heads, head_dim) if over is QkNorm.EACH_HEAD else (num_heads * head_dim,)
