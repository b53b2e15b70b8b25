"""The computation of a decoder: records that families make of a config and executors follow.

Nothing here names a tensor of a checkpoint or a kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, Any

from shared.errors import InternalError
from shared.model.spec.feed_forwards import Activation, ExpertsSpec, FeedForwardSpec
from shared.model.spec.kv_groups import group_layers, group_states
from shared.model.spec.mixers import AttentionSpec, LatentAttentionSpec, RecurrentSpec
from shared.model.spec.norms import NormPlace

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from shared.model.rope import RopeConfig
    from shared.model.spec.mixers import Mixer
    from shared.model.spec.norms import NormSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerInputsSpec:
    """A row of each token for each layer, besides the residual stream x (Gemma 3n).

    Of layer n it is r = (norm(project_n(e) / sqrt(hidden_size)) + sqrt(size) * table_n[token])
    / sqrt(2), where e enters the first layer. Layer n ends with x += norm(up(act(gate(x)) * r)).
    """

    size: int
    #: Of the table.
    num_rows: int
    activation: Activation


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """A mixer and a feed-forward, with norms, around a residual."""

    mixer: Mixer
    #: None with the norm's place `ALONE`.
    feed_forward: FeedForwardSpec | ExpertsSpec | None
    norms: NormPlace = NormPlace.BEFORE
    #: Factor of what the mixer and the feed-forward add to the residual.
    residual_multiplier: float = 1.0
    #: Of the feed-forward alone, if it has another one.
    feed_forward_multiplier: float | None = None
    #: At the end of the layer, the residual stream is multiplied with a learned number.
    has_scale: bool = False

    @property
    def multipliers(self) -> tuple[float, float]:
        """Factors of what the mixer and the feed-forward add to the residual."""
        own = self.feed_forward_multiplier
        return self.residual_multiplier, self.residual_multiplier if own is None else own

    @property
    def attention(self) -> AttentionSpec:
        """The mixer of a layer with attention.

        Raises:
            InternalError: it has another.
        """
        if not isinstance(self.mixer, AttentionSpec):
            raise InternalError(f"a layer with {type(self.mixer).__name__} does not attend")
        return self.mixer


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedPositions:
    """Rows that are added to the embedding by position."""

    num_rows: int
    #: The row of position 0.
    first_row: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """A whole decoder: embedding, layers, norm, output head.

    Logits are head(norm(x)) * logit_multiplier; a cap c makes c * tanh(logit / c) of them.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    layers: tuple[LayerSpec, ...]
    #: All norms are of this kind.
    norm: NormSpec
    has_final_norm: bool = True
    #: Whether the output head is the embedding.
    is_tied: bool = False
    #: Factor of the embedding, rounded to the dtype of the weights.
    embedding_multiplier: float = 1.0
    #: Whether the factor is the decoder's: it applies to rows that a prompt gives, too.
    multiplies_given: bool = False
    #: Numbers in a row of embedding and head, if projections make the hidden size of them.
    embedding_size: int | None = None
    layer_inputs: LayerInputsSpec | None = None
    learned_positions: LearnedPositions | None = None
    #: Whether the checkpoint has an output head; without one the model makes vectors only.
    has_head: bool = True
    has_head_bias: bool = False
    logit_multiplier: float = 1.0
    logit_softcap: float | None = None
    max_position_embeddings: int
    #: KV of all tokens is kept in one group, whatever windows layers have: that of a draft.
    keeps_all_kv: bool = False
    #: Of a part of a decoder: the groups of the whole. See `kv_groups`.
    whole_groups: tuple[tuple[int, ...], ...] | None = None
    #: Of a part of a decoder: its rows of embedding and head. The vocabulary is that of the whole.
    own_rows: int | None = None
    #: Of a part of a decoder: those of the layers above that are computed. See `computed`.
    own_layers: range | None = None
    #: Positions of the rotary angles: more than the above if RoPE is stretched.
    num_positions: int
    #: Dtype of the stored weights.
    dtype: str = "float32"
    #: Some linears round their inputs, as the checkpoint says.
    rounds_inputs: bool = False
    eos_token_ids: tuple[int, ...] = ()
    #: config.json as read.
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return len(self.layers)

    @property
    def computed(self) -> range:
        """The layers that are computed: all, unless this is a part of a decoder.

        The first layer comes with the embedding, the last one with the last norm and the head.
        """
        return range(self.num_layers) if self.own_layers is None else self.own_layers

    @property
    def begins(self) -> bool:
        """Whether it computes the first layer."""
        return self.computed.start == 0

    @property
    def ends(self) -> bool:
        """Whether it computes the last layer."""
        return self.computed.stop == self.num_layers

    @property
    def num_embedding_rows(self) -> int:
        """Rows of the embedding."""
        has_some = self.begins or (self.is_tied and self.ends)
        return self.num_rows if has_some else 0

    @property
    def num_head_rows(self) -> int:
        """Rows of the output head, if it is not the embedding."""
        return self.num_rows if self.ends else 0

    @property
    def num_rows(self) -> int:
        """Rows of embedding and head, where they are."""
        return self.vocab_size if self.own_rows is None else self.own_rows

    @property
    def is_divided(self) -> bool:
        """Whether ranks divide its layers: their results are parts of sums."""
        return self.own_rows is not None

    @property
    def embeds_width(self) -> int:
        """Numbers in a row that a prompt gives in place of a token's embedding."""
        return self.embedding_size or self.hidden_size

    @property
    def why_no_embeds(self) -> str | None:
        """Why prompts cannot give such rows; None: they can."""
        if self.layer_inputs is not None:
            return "its layers have inputs of their own, which are looked up by tokens"
        return None

    @property
    def max_model_len(self) -> int:
        """Longest sequence that the positions cover."""
        return self.num_positions

    @property
    def kv_groups(self) -> tuple[tuple[int, ...], ...]:
        """By group of layers that share a block table: the layers, ascending.

        Groups with states are the last ones. Layers that read another one's KV are in none.
        """
        if self.whole_groups is not None:
            return self.whole_groups
        mixers = self.attentions
        windows = {
            number: self._kv_window(mixer)
            for number, mixer in mixers.items()
            if mixer.kv_source is None
        }
        full_first = sorted(windows, key=lambda layer: windows[layer] is not None)
        kinds: dict[int, Hashable] = {}
        for number in full_first:
            mixer, window = mixers[number], windows[number]
            kinds[number] = (window, window is not None and mixer.is_chunked, mixer.kv_shape)
        sizes = {number: prod(mixers[number].kv_shape) for number in kinds}
        groups = group_layers(kinds, sizes)
        most = max((sum(sizes[layer] for layer in layers) for layers in groups), default=0)
        states = {number: own.state_size for number, own in self.recurrences.items()}
        return (*groups, *group_states(states, most))

    @property
    def num_token_groups(self) -> int:
        """Number of groups of layers with attention, which are the first ones."""
        return sum(layers[0] in self.attentions for layers in self.kv_groups)

    @property
    def attentions(self) -> dict[int, AttentionSpec | LatentAttentionSpec]:
        """The layers with attention, and their mixers."""
        mixers = {number: layer.mixer for number, layer in enumerate(self.layers)}
        return {
            n: mixer
            for n, mixer in mixers.items()
            if isinstance(mixer, AttentionSpec | LatentAttentionSpec)
        }

    @property
    def recurrences(self) -> dict[int, RecurrentSpec]:
        """The layers with states, and what they do with them."""
        mixers = {number: layer.mixer for number, layer in enumerate(self.layers)}
        return {n: mixer for n, mixer in mixers.items() if isinstance(mixer, RecurrentSpec)}

    def without_sharing(self) -> DecoderSpec:
        """Return the decoder with keys and values of each layer's own."""
        layers = (
            replace(layer, mixer=replace(layer.mixer, kv_source=None))
            if isinstance(layer.mixer, AttentionSpec)
            else layer
            for layer in self.layers
        )
        return replace(self, layers=tuple(layers))

    def keeps(self, layer: int) -> bool:
        """Return whether a layer keeps keys and values of its own, or a state."""
        mixer = self.attentions.get(layer)
        return mixer is None or mixer.kv_source is None

    def kv_window(self, layer: int) -> int | None:
        """Return the window or the chunk in which a layer reads keys and values; None: it reads
        all tokens.
        """
        return self._kv_window(self.attentions[layer])

    def _kv_window(self, mixer: AttentionSpec | LatentAttentionSpec) -> int | None:
        window = mixer.window
        is_full = window is None or window >= self.num_positions or self.keeps_all_kv
        return None if is_full else window

    def kv_place(self, layer: int) -> tuple[int, int]:
        """Return the group of the layer whose KV a layer reads, and that one's index there.

        Of a part of a decoder it is the index among those layers of the group that are computed.
        """
        mixer = self.attentions.get(layer)
        if mixer is not None and mixer.kv_source is not None:
            layer = mixer.kv_source
        for number, layers in enumerate(self.kv_groups):
            if layer in layers:
                return number, [own for own in layers if own in self.computed].index(layer)
        raise InternalError(f"layer {layer} of {self.architecture} is in no KV group")

    @property
    def windows(self) -> tuple[int | None, ...]:
        """By layer with attention: its window."""
        return tuple(mixer.window for mixer in self.attentions.values())

    @property
    def ropes(self) -> tuple[RopeConfig | None, ...]:
        """The rotations that layers use, each once, in the order of their first layers."""
        found: list[RopeConfig | None] = []
        for mixer in self.attentions.values():
            if mixer.rope not in found:
                found.append(mixer.rope)
        return tuple(found)

    @property
    def num_angles(self) -> int:
        """Numbers in the tables of all rotations; that of layers which rotate nothing is one."""
        dims = sum(self.rotated_size(rope) for rope in self.ropes)
        return dims * self.num_positions

    def rotated_size(self, rope: RopeConfig | None) -> int:
        """Return the numbers of a head that a rotation's table has for each position."""
        if rope is not None:
            return rope.head_dim
        (head_dim,) = {own.kv_shape[2] for own in self.attentions.values() if own.rope is None}
        return head_dim

    def qk_norm(self, mixer: AttentionSpec) -> NormSpec:
        """Return the norm of queries and keys of a layer that has one."""
        return replace(self.norm, has_bias=False, has_weight=mixer.has_qk_norm_weights)

    @property
    def attention(self) -> AttentionSpec:
        """The common description of all layers' attention, but for the tokens that it sees.

        Raises:
            InternalError: they differ in more. Executors that use this compute equal layers only.
        """
        first, *others = (
            replace(self.layers[number].attention, window=None, is_chunked=False)
            for number in self.attentions
        )
        if self.recurrences or any(other != first for other in others):
            raise InternalError(f"the layers of {self.architecture} attend in different ways")
        return first

    @property
    def inner_size(self) -> int:
        """Numbers per token of the widest feed-forward of any layer."""
        found = (layer.feed_forward for layer in self.layers)
        return max((own.inner_size for own in found if own is not None), default=0)

    @property
    def has_latents(self) -> bool:
        """Whether a layer's attention keeps rows instead of keys and values."""
        return any(isinstance(own, LatentAttentionSpec) for own in self.attentions.values())

    @property
    def has_chunks(self) -> bool:
        """Whether a layer's attention is to chunks."""
        return any(own.is_chunked for own in self.attentions.values())

    @property
    def shares_kv(self) -> bool:
        """Whether a layer reads keys and values of another one."""
        return any(own.kv_source is not None for own in self.attentions.values())

    @property
    def has_states(self) -> bool:
        """Whether a layer keeps a state."""
        return bool(self.recurrences)

    @property
    def is_recordable(self) -> bool:
        """Whether a decode step in PyTorch is the same work for any tokens and lengths."""
        return not (self.has_experts or self.has_latents or self.has_chunks or self.has_states)

    @property
    def has_temperatures(self) -> bool:
        """Whether queries of a layer have a factor that depends on their position."""
        mixers = (layer.mixer for layer in self.layers)
        return any(isinstance(own, AttentionSpec) and own.temperature for own in mixers)

    @property
    def has_experts(self) -> bool:
        """Whether the computation depends on choices among experts."""
        return any(isinstance(layer.feed_forward, ExpertsSpec) for layer in self.layers)
