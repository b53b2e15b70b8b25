"""The interface of a family of architectures."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from shared.model.spec.decoder import DecoderSpec
    from shared.model.weight_map import WeightMap

#: What the names of a bare model's tensors lack.
BARE = "model."
#: What tensors are that some files have behind the last layer.
FURTHER = "layers that predict further tokens"


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
    #: The same where each expert has tensors of its own, as quantised files of some families have.
    names_apart: Callable[[DecoderSpec], WeightMap] | None = None
    #: What some files' names begin with, in place of what `names` says; the first that fits counts.
    prefixes: Mapping[str, str] = field(default_factory=dict)
    #: What the names of further layers begin with, {} being their number; their tensors, as many
    #: layers as a config says, are not read. Empty: there are none.
    further_layers: str = ""
    #: Return the tensors of the first of them, by name, in such a decoder's checkpoint. None: their
    #: computation is not known here.
    further: Callable[[DecoderSpec], WeightMap] | None = None
    #: What other names begin with whose tensors the decoder rightly does not read, and what those
    #: are.
    unread: Mapping[str, str] = field(default_factory=dict)

    def known_name(self, stored: str, names: WeightMap) -> str:
        """Return the name in `names` of a tensor that a file has; an unknown one as it is."""
        if stored not in names:
            for old, new in self.prefixes.items():
                if stored.startswith(old) and new + stored.removeprefix(old) in names:
                    return new + stored.removeprefix(old)
            if BARE + stored in names:
                return BARE + stored
        return stored

    def is_further(self, stored: str, spec: DecoderSpec) -> bool:
        """Return whether a tensor is of a layer behind the last one.

        Such layers predict further tokens (`num_nextn_predict_layers`); the decoder has none.
        """
        begin, _, _ = self.further_layers.partition("{}")
        number = stored.removeprefix(begin).partition(".")[0]
        if not begin or not stored.startswith(begin) or not number.isdecimal():
            return False
        num_further = int(spec.raw.get("num_nextn_predict_layers") or 0)
        return spec.num_layers <= int(number) < spec.num_layers + num_further
