"""All families. A new family needs a file and a line here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.model.families.llama import LLAMA
from shared.model.families.mistral import MISTRAL
from shared.model.families.qwen2 import QWEN2
from shared.model.families.qwen3 import QWEN3

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.model.families.base import Family
    from shared.model.spec import DecoderSpec
    from shared.model.weight_map import WeightMap

_ALL = (LLAMA, MISTRAL, QWEN2, QWEN3)
#: By architecture, as named in a config.
FAMILIES: Mapping[str, Family] = {family.architecture: family for family in _ALL}
#: By model type: the architecture.
ARCHITECTURES: Mapping[str, str] = {family.model_type: family.architecture for family in _ALL}


def stored_names(spec: DecoderSpec) -> WeightMap:
    """Return the tensors of a checkpoint of this decoder, by name."""
    return FAMILIES[spec.architecture].names(spec)
