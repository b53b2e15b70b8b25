"""Which layers the stages of a pipeline have, and what they cannot divide."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shared.errors import ConfigError
from shared.kv.split import KVSplit, divided
from shared.model.sharding.stages import stage_layers
from shared.model.spec.decoder import DecoderSpec, LayerInputsSpec
from shared.model.spec.feed_forwards import Activation
from shared.model.spec.norms import NormPlace
from tests.fakes.engine.model import make_spec


def beside(spec: DecoderSpec) -> DecoderSpec:
    """Every second layer is beside the one before it."""
    layers = (
        replace(layer, norms=NormPlace.BESIDE) if number % 2 else layer
        for number, layer in enumerate(spec.layers)
    )
    return replace(spec, layers=tuple(layers))


def sharing(spec: DecoderSpec) -> DecoderSpec:
    """The last layer reads keys and values of the first one."""
    *layers, last = spec.layers
    last = replace(last, mixer=replace(last.attention, kv_source=0))
    return replace(spec, layers=(*layers, last))


def test_layers_are_divided_evenly() -> None:
    """The last stage, which has the head, has the fewest."""
    assert [len(own) for own in divided(11, 4)] == [3, 3, 3, 2]
    spec = make_spec(num_layers=5)
    assert stage_layers(spec, 3) == (range(2), range(2, 4), range(4, 5))
    assert stage_layers(beside(make_spec(num_layers=6)), 2) == (range(4), range(4, 6))
    stages = stage_layers(spec, 2)
    assert KVSplit.of_stages(((0, 3), (1, 2, 4)), stages).stages == ((1, 2), (1, 1))


def test_what_stages_cannot_divide_is_refused() -> None:
    spec = make_spec(num_layers=3)
    inputs = LayerInputsSpec(size=4, num_rows=9, activation=Activation.SILU)
    for own, num, message in (
        (spec, 4, "3 layers, or pairs of layers, to divide; sizes that would do: 1, 2, 3$"),
        (beside(make_spec(num_layers=4)), 3, "2 layers.* would do: 1, 2$"),
        (sharing(spec), 2, "layer 2 reads keys and values of layer 0 .* would do: 1$"),
        (replace(spec, layer_inputs=inputs), 2, "inputs that are looked up by tokens.* do: 1$"),
    ):
        with pytest.raises(ConfigError, match=f"pipeline_parallel_size {num}: .*{message}"):
            stage_layers(own, num)
