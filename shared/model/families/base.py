"""The interface of a family of architectures."""

from __future__ import annotations

from dataclasses import dataclass, field
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
    #: What some files' names begin with, in place of what `names` says; the first that fits counts.
    prefixes: Mapping[str, str] = field(default_factory=dict)

    def known_name(self, stored: str, names: WeightMap) -> str:
        """Return the name in `names` of a tensor that a file has; an unknown one as it is."""
        if stored not in names:
            for old, new in self.prefixes.items():
                if stored.startswith(old) and new + stored.removeprefix(old) in names:
                    return new + stored.removeprefix(old)
        return stored
