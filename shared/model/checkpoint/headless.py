"""Decoders without an output head: bare models, and those with a classifier in its place."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from shared.model.checkpoint.files.checkpoint_files import find_checkpoint_files
from shared.model.families.registry import ARCHITECTURES, FAMILIES

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

#: In a config: it has no output head, whatever the family's have.
_MARK = "without_head"
#: What names of such architectures end with, and what sentence-transformers writes beside weights.
_ENDS = ("ForSequenceClassification", "Model")
_MODULES = "modules.json"
_TIED, _HEAD = "tie_word_embeddings", "lm_head.weight"
#: What the names of tensors begin with that are read with the heads.
CLASSIFIER = "score."


def as_decoder(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the config of the decoder in a bare model, or in front of a classifier.

    A config of anything else is returned as it is.
    """
    names = raw.get("architectures")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return raw
    family = ARCHITECTURES.get(str(raw.get("model_type")))
    if family is None or not names or any(name in FAMILIES for name in names):
        return raw
    return _without_head({**raw, "architectures": [family]}) if names[0].endswith(_ENDS) else raw


def without_missing_head(raw: Any, model_dir: Path) -> Any:
    """Return the config of an embedder whose files lack the output head that it tells of.

    sentence-transformers writes them so: the architecture remains that of the whole model. Where
    files cannot be read, the config is returned as it is.

    Raises:
        ModelLoadError: a file is damaged.
    """
    if not isinstance(raw, dict) or raw.get(_TIED) or not (model_dir / _MODULES).is_file():
        return raw
    names = raw.get("architectures")
    if not isinstance(names, list) or not any(str(name) in FAMILIES for name in names):
        return raw
    # `baton doctor` reads configs in a router's environment, too, which has no library for tensors.
    if find_spec("safetensors") is None:
        return raw
    from shared.model.checkpoint.files.tensor_files import read_headers

    files = find_checkpoint_files(model_dir)
    if any(_HEAD in read_headers(path) for path in files.shards):
        return raw
    return _without_head(raw)


def has_head(raw: Mapping[str, Any]) -> bool:
    """Return whether a config is of a decoder with an output head."""
    return _MARK not in raw


def _without_head(raw: Mapping[str, Any]) -> dict[str, Any]:
    # A tied head takes no memory, and no file needs one.
    return {**raw, _TIED: True, _MARK: True}
