"""How the layers of a decoder are divided among the stages of a pipeline, and what cannot be."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from shared.errors import ConfigError
from shared.kv.split import divided
from shared.model.spec.mixers import AttentionSpec
from shared.model.spec.norms import NormPlace

if TYPE_CHECKING:
    from shared.model.spec.decoder import DecoderSpec

#: The largest number of stages that a refusal names.
_MOST_STAGES = 16


def stage_layers(spec: DecoderSpec, num_stages: int) -> tuple[range, ...]:
    """Return the layers of each stage. A layer beside the one before it stays with that one.

    Raises:
        ConfigError: so many stages cannot divide the decoder; names the numbers that could.
    """
    reason = _why_not(spec, num_stages)
    if reason is not None:
        found = (num for num in range(1, _MOST_STAGES + 1) if _why_not(spec, num) is None)
        raise ConfigError(
            f"pipeline_parallel_size {num_stages}: {reason}; sizes that would do: "
            + ", ".join(map(str, found))
        )
    return _divided(spec, num_stages)


def _why_not(spec: DecoderSpec, num_stages: int) -> str | None:
    """Return why so many stages cannot divide a decoder; None: they can."""
    if num_stages == 1:
        return None
    if spec.layer_inputs is not None:
        return f"layers of {spec.architecture} have inputs that are looked up by tokens"
    num_units = len(_starts(spec))
    if num_units < num_stages:
        return f"{spec.architecture} has {num_units} layers, or pairs of layers, to divide"
    for own in _divided(spec, num_stages):
        for number in own:
            mixer = spec.layers[number].mixer
            source = mixer.kv_source if isinstance(mixer, AttentionSpec) else None
            if source is not None and source not in own:
                return f"layer {number} reads keys and values of layer {source} of another stage"
    return None


def _divided(spec: DecoderSpec, num_stages: int) -> tuple[range, ...]:
    starts = _starts(spec)
    parts = divided(len(starts), num_stages)
    ends = [*(starts[part.start] for part in parts), spec.num_layers]
    return tuple(range(first, end) for first, end in pairwise(ends))


def _starts(spec: DecoderSpec) -> list[int]:
    """Return the layers that a stage may begin with."""
    return [n for n, layer in enumerate(spec.layers) if layer.norms is not NormPlace.BESIDE]
