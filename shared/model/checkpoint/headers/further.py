"""Which layer that predicts further tokens a checkpoint has. Reads headers only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.errors import ModelLoadError
from shared.model.checkpoint.headers.contents import read_further
from shared.model.families.registry import FAMILIES

if TYPE_CHECKING:
    from shared.model.checkpoint.files.checkpoint_files import CheckpointFiles
    from shared.model.checkpoint.headers.contents import Contents
    from shared.model.spec.decoder import DecoderSpec
    from shared.model.weight_map import WeightMap

_INSTEAD = "ngram, suffix and draft_model guess for any model"


def further_names(decoder: DecoderSpec) -> WeightMap:
    """Return the tensors of the first layer behind a decoder's last one.

    Raises:
        ModelLoadError: none is known of this family.
    """
    family = FAMILIES[decoder.architecture]
    if family.further is None:
        raise ModelLoadError(
            f"no layer that predicts further tokens (MTP) of {decoder.architecture} is known here; "
            f"{_INSTEAD}"
        )
    return family.further(decoder)


def find_further(files: CheckpointFiles, decoder: DecoderSpec) -> Contents:
    """Return the tensors of that layer.

    Raises:
        ModelLoadError: the files lack it, or a part of it, or are damaged.
    """
    names = further_names(decoder)
    contents = read_further(files.shards, decoder, names)
    if not contents.tensors:
        name = min(names)
        raise ModelLoadError(
            f"{files.expected_in(name)}: tensor {name!r} is missing: the checkpoint has no layer "
            f"that predicts further tokens (MTP), which conversions often leave out; {_INSTEAD}"
        )
    return contents
