"""The description of any decoder that transformers knows, as far as its config gives it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers import AutoConfig, AutoModelForCausalLM

from shared.errors import ModelLoadError
from shared.gguf.source import refusal_of
from shared.model.checkpoint.config import read_config
from shared.model.checkpoint.formats.registry import find_format, with_own_file
from shared.model.families.sizes import check_size
from shared.model.spec.decoder import DecoderSpec, LayerSpec
from shared.model.spec.feed_forwards import FeedForwardSpec
from shared.model.spec.mixers import AttentionSpec
from shared.model.spec.norms import NormSpec

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PretrainedConfig

#: Layers of other types hide tokens by a mask alone, or keep states.
_TYPES = {"full_attention", "sliding_attention"}


def load_config(model_dir: Path, *, trust_remote_code: bool) -> PretrainedConfig:
    """Return transformers' config of a decoder.

    Raises:
        ModelLoadError: transformers does not know the model, or it is none that can be computed.
    """
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(
            model_dir, local_files_only=True, trust_remote_code=trust_remote_code
        )
        # Our reader makes what it says of tensors; transformers' would want other libraries.
        vars(config).pop("quantization_config", None)
        reason = _why_no_module(config) or _why_not(config)
    except Exception as error:  # others' code, on a file that is not trusted
        why = _first_line(error)
        if not trust_remote_code and "trust_remote_code" in str(error):
            why = "the model has Python code of its own, which --trust-remote-code runs"
        raise ModelLoadError(refusal_of(model_dir / "config.json", why)) from error
    if reason is not None:
        raise ModelLoadError(refusal_of(model_dir / "config.json", reason))
    return config


def describe(model_dir: Path, *, trust_remote_code: bool) -> DecoderSpec:
    """Return the description of a decoder whose layers are known only once it has been loaded.

    Until then they are taken for equal. Raises as `load_config`.
    """
    config = load_config(model_dir, trust_remote_code=trust_remote_code)
    try:
        return _described(config, model_dir)
    except ModelLoadError as error:
        raise ModelLoadError(refusal_of(model_dir / "config.json", str(error))) from error
    except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
        raise ModelLoadError(
            refusal_of(model_dir / "config.json", f"a value is wrong: {error}")
        ) from error


def _described(config: PretrainedConfig, model_dir: Path) -> DecoderSpec:
    text = config.get_text_config(decoder=True)
    # Where layers differ, the config of all of them refuses to say how.
    first: Any = getattr(text, "per_layer_config", (text,))[0]
    num_heads = int(first.num_attention_heads)
    mixer = AttentionSpec(
        num_heads=num_heads,
        num_kv_heads=int(getattr(first, "num_key_value_heads", None) or num_heads),
        head_dim=int(getattr(first, "head_dim", None) or text.hidden_size // num_heads),
        rope=None,
    )
    # Its inner size matters to no other part: transformers computes the layers.
    layer = LayerSpec(mixer=mixer, feed_forward=FeedForwardSpec(inner_size=1))
    raw = with_own_file(read_config(model_dir), model_dir)
    stored = find_format(raw)
    positions, num_layers = int(text.max_position_embeddings), int(text.num_hidden_layers)
    for name, value in (
        ("vocab_size", int(text.vocab_size)),
        ("hidden_size", int(text.hidden_size)),
        ("num_layers", num_layers),
        ("num_heads", num_heads),
        ("head_dim", mixer.head_dim),
        ("max_position_embeddings", positions),
    ):
        check_size(name, value)
    return DecoderSpec(
        architecture=_architecture(config),
        vocab_size=int(text.vocab_size),
        hidden_size=int(text.hidden_size),
        layers=(layer,) * num_layers,
        norm=NormSpec(eps=1e-6),
        max_position_embeddings=positions,
        num_positions=positions,
        dtype=str(config.dtype or "float32").removeprefix("torch."),
        eos_token_ids=_ids(text.eos_token_id),
        raw=raw,
        rounds_inputs=stored is not None and stored.rounds_inputs,
    )


def _architecture(config: PretrainedConfig) -> str:
    return str((config.architectures or [config.model_type])[0])


def _why_no_module(config: PretrainedConfig) -> str | None:
    """Return why there is no module whose attention could be ours."""
    auto: Any = AutoModelForCausalLM  # its functions have no types
    if type(config) in auto._model_mapping:
        module = auto._model_mapping[type(config)]
        if module._supports_attention_backend:
            return None
        return f"transformers' {module.__name__} does not let others compute its attention"
    if "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {}):
        return None
    return f"transformers has no causal model for {_architecture(config)}"


def _why_not(config: PretrainedConfig) -> str | None:
    """Return why a model cannot be computed, as far as its config says it."""
    text, name = config.get_text_config(decoder=True), _architecture(config)
    if text is not config:
        return f"{name} is not a decoder of text alone"
    if config.is_encoder_decoder:
        return f"{name} has an encoder"
    others = set(getattr(text, "layer_types", None) or ()) - _TYPES
    if others:
        known = ", ".join(sorted(_TYPES))
        return f"layer_types has {', '.join(sorted(others))}; supported: {known}"
    missing = [
        name
        for name in ("num_attention_heads", "max_position_embeddings", "num_hidden_layers")
        if getattr(text, name, None) is None
    ]
    return f"{missing[0]} is missing" if missing else _why_wrong(text)


def _why_wrong(text: PretrainedConfig) -> str | None:
    """Return which number of a config its module would fail for, or misunderstand."""
    window, types = getattr(text, "sliding_window", None), getattr(text, "layer_types", None)
    # transformers' own configs have 0 where no layer has a window.
    has_windows = types is None or "sliding_attention" in types
    if has_windows and window is not None and window < 1:
        return f"sliding_window must be at least 1, not {window}"
    chosen = getattr(text, "num_experts_per_tok", None)
    for name in ("num_experts", "num_local_experts", "n_routed_experts"):
        num = getattr(text, name, None)
        if num and chosen is not None and not 1 <= chosen <= num:
            return f"num_experts_per_tok is {chosen}, but {name} is {num}"
    return None


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _ids(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    return (int(value),) if isinstance(value, int) else tuple(int(each) for each in value)
