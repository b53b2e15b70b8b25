"""A rank's part of a decoder: its description, and the cut of every stored tensor."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from math import lcm
from typing import TYPE_CHECKING

from shared.errors import ConfigError
from shared.model.sharding.cut import ELSEWHERE, WHOLE, Cut, ModuleCut
from shared.model.sharding.feed_forwards import ANY_EXPERT, shard_feed_forward
from shared.model.sharding.mixers import shard_mixer
from shared.model.sharding.split import kept_heads, vocabulary
from shared.model.sharding.stages import stage_layers
from shared.model.spec.mixers import AttentionSpec, QkNorm
from shared.model.spec.norms import NormKind
from shared.model.weight_map import NORM, Kind, WeightPart

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.model.sharding.split import Split
    from shared.model.spec.decoder import DecoderSpec, LayerSpec

_MIXER, _FEED_FORWARD, _EXPERTS = "attention.", "mlp.", "mlp.experts."
#: The largest size that a refusal names.
_MOST_SIZES = 16
#: Tensors with rows for tokens.
_BY_TOKEN = (Kind.EMBEDDING, Kind.HEAD, Kind.HEAD_BIAS)
#: Modules in front of the first layer, and behind the last one.
_IN_FRONT, _BEHIND = ("project_in",), ("project_out", NORM.module)


@dataclass(frozen=True)
class Shards:
    """One rank's part of a decoder."""

    whole: DecoderSpec
    split: Split
    #: By layer, by a linear's path in it, of experts with {}: the inputs that must stay together,
    #: since they share a scale or a block; 1 where not named.
    units: Mapping[int, Mapping[str, int]] = field(default_factory=dict)

    def in_groups_of(self, size: int) -> Shards:
        """Return the part whose linears have whole groups of so many inputs."""
        units = {}
        for number, (_, cuts) in enumerate(self._layers):
            own = dict(self.units.get(number, {}))
            for path, cut in cuts.items():
                if cut.columns is not None:
                    own[path] = lcm(size, own.get(path, 1))
            units[number] = own
        return replace(self, units=units)

    @cached_property
    def spec(self) -> DecoderSpec:
        """What the rank computes.

        Raises:
            ConfigError: so many ranks, or stages, cannot divide the decoder; names the sizes that
                could.
        """
        own = self.layers if self.split.num_stages > 1 else None
        try:
            return replace(self._divided(), own_layers=own)
        except ConfigError as error:
            sizes = ", ".join(str(size) for size in range(1, _MOST_SIZES + 1) if self._works(size))
            raise ConfigError(f"{error}; sizes that would do: {sizes}") from error

    @cached_property
    def stages(self) -> tuple[range, ...]:
        """The layers of each stage. Raises ConfigError as `spec` does."""
        return stage_layers(self.whole, self.split.num_stages)

    @property
    def layers(self) -> range:
        """The layers that the rank computes."""
        return self.stages[self.split.stage]

    def _divided(self) -> DecoderSpec:
        _check(self.whole, self.split)
        _, num_rows = vocabulary(self.whole.vocab_size, self.split)
        return replace(
            self.whole,
            layers=tuple(layer for layer, _ in self._layers),
            whole_groups=self.whole.kv_groups,
            own_rows=num_rows if self.split.size > 1 else None,
        )

    def _works(self, size: int) -> bool:
        """Return whether so many ranks can divide the decoder."""
        try:
            for rank in range(size):
                split = replace(self.split, rank=rank, size=size)
                if size > 1:
                    Shards(self.whole, split, self.units)._divided()
        except ConfigError:
            return False
        return True

    def kept_heads(self, layer: int) -> range:
        """Return the heads of keys and values that the rank keeps of a layer with attention."""
        return kept_heads(self.whole.attentions[layer].kv_shape[1], self.split)

    @property
    def rows(self) -> range:
        """The rank's rows of embedding and head, which are those of tokens."""
        return vocabulary(self.whole.vocab_size, self.split)[0]

    def cut(self, part: WeightPart) -> Cut:
        """Return what the rank reads of a part of the whole decoder."""
        if not self._has(part):
            return ELSEWHERE
        if not part.module:
            return Cut((self.rows,)) if part.kind in _BY_TOKEN else WHOLE
        if part.layer is None:
            return WHOLE
        layer = part.layer
        path = part.module.split(".", 2)[2] if part.module.count(".") > 1 else ""
        if part.kind not in (Kind.WEIGHT, Kind.BIAS):
            path = f"{path}.{part.kind.value}"
        if path.startswith(_EXPERTS):
            number, _, name = path.removeprefix(_EXPERTS).partition(".")
            feed_forward, path = (
                self.spec.layers[layer].feed_forward,
                f"{_EXPERTS}{ANY_EXPERT}.{name}",
            )
            own = getattr(feed_forward, "own", None)
            if own is not None and int(number) not in own:
                return ELSEWHERE
        found = self._layers[layer][1].get(path)
        if found is None:
            return WHOLE
        return found.of(part.index, is_bias=part.kind is Kind.BIAS, rank=self.split.rank)

    def _has(self, part: WeightPart) -> bool:
        """Return whether the rank's stage has a part."""
        is_first, is_last = self.split.is_first, self.split.is_last
        if part.layer is not None:
            return part.layer in self.layers
        if part.kind is Kind.EMBEDDING:
            return is_first or (is_last and self.whole.is_tied)
        if part.kind is Kind.HEAD:  # where the embedding is the head, it may stand for it
            return is_last or (is_first and self.whole.is_tied)
        if part.kind is Kind.POSITIONS or part.module in _IN_FRONT:
            return is_first
        return is_last or not (part.kind is Kind.HEAD_BIAS or part.module in _BEHIND)

    def linear_cut(self, path: str) -> Cut:
        """Return the rank's outputs and inputs of a linear, by its path in the model."""
        return self.cut(WeightPart(path, index=None))

    def whole_sizes(self, own: Mapping[str, tuple[int, int]]) -> Mapping[str, tuple[int, int]]:
        """Return inputs and outputs of whole linears for those of the rank's, by path."""
        found = {}
        for path, (num_inputs, num_outputs) in own.items():
            whole = self._linear_size(path)
            found[path] = whole[0] or num_inputs, whole[1] or num_outputs
        return found

    def _linear_size(self, path: str) -> tuple[int, int]:
        """Return the numbers of inputs and outputs of a whole linear; 0: they are not divided."""
        part = WeightPart(path, index=None)
        assert part.layer is not None
        found = self._layers[part.layer][1].get(path.split(".", 2)[2], ModuleCut())
        return found.num_inputs, sum(found.sizes)

    @cached_property
    def _layers(self) -> list[tuple[LayerSpec, Mapping[str, ModuleCut]]]:
        """By layer: the rank's part, and the cuts of modules by their paths in the layer."""
        return [
            self._layer(layer, self.units.get(number, {}))
            for number, layer in enumerate(self.whole.layers)
        ]

    def _layer(
        self, layer: LayerSpec, units: Mapping[str, int]
    ) -> tuple[LayerSpec, Mapping[str, ModuleCut]]:
        mixer, cuts = shard_mixer(layer.mixer, self.split)
        found = {f"{_MIXER}{name}": cut for name, cut in cuts.items()}
        feed_forward = layer.feed_forward
        if feed_forward is not None:
            own = {
                path.removeprefix(_FEED_FORWARD): unit
                for path, unit in units.items()
                if path.startswith(_FEED_FORWARD)
            }
            feed_forward, cuts = shard_feed_forward(feed_forward, self.split, own)
            found |= {f"{_FEED_FORWARD}{name}": cut for name, cut in cuts.items()}
        for path, unit in units.items():
            _check_unit(found.get(path), unit, self.split)
        return replace(layer, mixer=mixer, feed_forward=feed_forward), found


def _check(spec: DecoderSpec, split: Split) -> None:
    """Refuse what ranks do not compute."""
    if split.size > spec.vocab_size:
        raise ConfigError(
            f"tensor_parallel_size {split.size} is more than the vocabulary's {spec.vocab_size} "
            "tokens"
        )
    if spec.norm.kind is NormKind.LAYER and any(
        isinstance(own, AttentionSpec) and own.qk_norm is QkNorm.WHOLE
        for own in spec.attentions.values()
    ):
        raise ConfigError(
            f"tensor_parallel_size {split.size}: {spec.architecture} normalises all heads of a "
            "token together, by their mean, too: it must be 1"
        )


def _check_unit(cut: ModuleCut | None, unit: int, split: Split) -> None:
    """Refuse a cut of a linear's inputs that divides what shares a scale."""
    if cut is None or cut.columns is None:
        return
    ends = cut.columns.start, cut.columns.stop
    if any(end % unit and end != cut.num_inputs for end in ends):
        raise ConfigError(
            f"tensor_parallel_size {split.size}: the {len(cut.columns)} inputs of rank "
            f"{split.rank} divide groups of {unit} that share a scale"
        )
