"""Tensors of a checkpoint that its decoder does not read, and what they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.errors import ModelLoadError
from shared.model.checkpoint.headless import CLASSIFIER
from shared.model.checkpoint.wrapper import is_beside
from shared.model.families.base import FURTHER

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from shared.model.families.base import Family
    from shared.model.spec.decoder import DecoderSpec

#: Old files have them; they are computed instead.
_ANGLES = ".rotary_emb.inv_freq"
_MASKS = (".attn.bias", ".attention.bias")
_MASKED = (".attn.masked_bias", ".attention.masked_bias")
#: A mask is [1, 1, length, length]; a bias of a projection is not.
_MASK_DIMS = 4


def check_surplus(
    family: Family, spec: DecoderSpec, path: Path, name: str, shape: Sequence[int]
) -> str:
    """Return what a tensor is that a decoder rightly does not read.

    shape: as stored in the file `path`.

    Raises:
        ModelLoadError: it could be a part that the config does not ask for, so that answers would
            differ from the model's.
    """
    what = _what(family, spec, name, shape)
    if what is None:
        raise ModelLoadError(
            f"{path}: tensor {name!r} is not part of {spec.architecture} with {spec.num_layers} "
            "layers as configured"
        )
    return what


def _what(family: Family, spec: DecoderSpec, name: str, shape: Sequence[int]) -> str | None:
    if name.endswith(_ANGLES):
        return "rotary angles"
    if name.endswith(_MASKED) or (name.endswith(_MASKS) and len(shape) == _MASK_DIMS):
        return "causal masks"
    if is_beside(spec, name):
        return "parts for images and sounds"
    if family.is_further(name, spec):
        return FURTHER
    if spec.shares_kv and name in family.names(spec.without_sharing()):
        return "keys and values that a layer shares"
    unread = family.unread if spec.has_head else {**family.unread, CLASSIFIER: "a classifier"}
    known = (what for begin, what in unread.items() if name.startswith(begin))
    return next(known, None)
