"""The interface of a family of architectures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from shared.model.spec import DecoderSpec
    from shared.model.weight_map import WeightMap


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """An architecture. Its functions are pure, and are called before any memory is allocated."""

    #: Name of the architecture in a config.json.
    architecture: str
    model_type: str
    #: Return the decoder that a config.json describes. Raises ModelLoadError, or KeyError,
    #: TypeError or ValueError for a wrong value.
    describe: Callable[[Mapping[str, Any]], DecoderSpec]
    #: Return the tensors of such a decoder's checkpoint, by name.
    names: Callable[[DecoderSpec], WeightMap]
