"""Models of images or sounds: the config of their decoder of text, and which tensors are its.

Such a config has that of the decoder under `text_config`, with few of its values: the rest are the
defaults of transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.errors import ModelLoadError
from shared.model.families.registry import ARCHITECTURES, FAMILIES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.model.spec.decoder import DecoderSpec
    from shared.model.weight_map import WeightMap

#: In an unwrapped config: the architecture around the decoder.
_MARK = "wrapped_by"
#: Keys that may be beside `text_config` instead of in it, or null in it.
_SHARED = ("eos_token_id", "dtype", "torch_dtype", "quantization_config")
#: The model around the decoder has the head, and says whether it is tied.
_TIED = "tie_word_embeddings"
#: Their tokens of text see later ones.
_NOT_CAUSAL = ("paligemma",)
#: What the names of a decoder's tensors begin with, as transformers 4 and 5 write them, and as the
#: decoder alone has them.
_DECODER = {
    "model.language_model.": "model.",
    "model.text_model.": "model.",
    "language_model.model.": "model.",
    "language_model.": "",
    "lm_head.": "lm_head.",
}
#: What the names of other tensors begin with, behind an optional `model.`.
_OTHERS = (
    "vision_",
    "visual",
    "audio_",
    "embed_vision.",
    "embed_audio.",
    "image_newline",
    "multi_modal_projector.",
    "projector.",
    "connector.",
    "aligner.",
    "qformer.",
    "generation_",
    "vqmodel.",
)


def unwrap(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the config of the decoder of text, if it is of a family; otherwise `raw` itself.

    Raises:
        ModelLoadError: a value is wrong.
    """
    text = raw.get("text_config")
    if raw.get("model_type") in _NOT_CAUSAL:
        return raw
    if not isinstance(text, dict) or text.get("model_type") not in ARCHITECTURES:
        return raw
    shared = {key: raw[key] for key in _SHARED if key in raw and text.get(key) is None}
    if _TIED in raw:
        shared[_TIED] = raw[_TIED]
    own = {
        "architectures": [ARCHITECTURES[text["model_type"]]],
        _MARK: (raw.get("architectures") or [raw.get("model_type")])[0],
    }
    return {**_with_defaults(text), **shared, **own}


def is_wrapped(raw: Mapping[str, Any]) -> bool:
    """Return whether a config was unwrapped."""
    return _MARK in raw


def own_name(spec: DecoderSpec, names: WeightMap, stored: str) -> str:
    """Return the name in `names` of a tensor that a file has; an unknown one as it is."""
    text = _text_name(stored) if is_wrapped(spec.raw) else stored
    return FAMILIES[spec.architecture].known_name(text, names)


def is_beside(spec: DecoderSpec, name: str) -> bool:
    """Return whether a tensor is of a part for images or sounds."""
    return is_wrapped(spec.raw) and name.removeprefix("model.").startswith(_OTHERS)


def _text_name(stored: str) -> str:
    for begin, own in _DECODER.items():
        if stored.startswith(begin):
            return own + stored.removeprefix(begin)
    return stored


def _with_defaults(text: dict[str, Any]) -> dict[str, Any]:
    import transformers  # noqa: PLC0415 - takes seconds, and few models need it

    try:
        full: dict[str, Any] = transformers.AutoConfig.for_model(**text).to_dict()
        return full
    except (TypeError, ValueError) as error:
        raise ModelLoadError(f"text_config: {error}") from error
