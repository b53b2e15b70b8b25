"""Loading of proposers' weights, according to settings and target."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from shared.engine.settings.speculation import SpeculationConfig
from shared.engine.speculation.draft_files import require_same_tokens
from shared.errors import ConfigError, ModelLoadError
from shared.gguf.folder import model_folder
from shared.model.attention.registry import default_backend, get_backend
from shared.model.decoder.causal_lm import CausalLM
from shared.model.device import made_on
from shared.model.drafts.eagle import load_eagle
from shared.model.drafts.eagle3 import load_eagle3
from shared.model.drafts.medusa import load_medusa
from shared.model.drafts.mtp import load_mtp
from shared.model.loader import load_model

if TYPE_CHECKING:
    from shared.engine.speculation.base import ProposerContext
    from shared.model.attention.base import AttentionBackend
    from shared.model.drafts.base import FeatureHead
    from shared.model.drafts.medusa import MedusaHeads
    from shared.model.loaded import LoadedModel


def load_draft(context: ProposerContext) -> LoadedModel:
    """Return an ordinary model with the target's vocabulary.

    Raises:
        ConfigError: it cannot be used; names the field.
    """
    config, target = context.config, context.target
    try:
        draft = load_model(
            _directory(context),
            dtype=config.dtype,
            load_format=config.load_format,
            seed=config.seed,
            device=context.arena.device,
            attention_backend=_backend_name(target, native="auto"),
            quantization=config.quantization,
            beside=target,
            cpu_int4_compute=target.cpu_int4_compute,
        )
    except (ConfigError, ModelLoadError) as error:
        raise ConfigError(f"speculative_config: model: {error}") from error
    if draft.spec.has_states:
        raise ConfigError(
            f"draft {draft.spec.architecture} keeps states, which cannot forget rejected tokens: "
            "a draft has attention in every layer"
        )
    if len(draft.spec.kv_groups) > 1:
        raise ConfigError(
            f"draft {draft.spec.architecture} has layers with different heads: those of a draft "
            "are equal"
        )
    require_same_tokens(config, draft.spec, target.spec)
    return draft


def load_feature_head(context: ProposerContext) -> FeatureHead:
    """Return the head of the settings' method. Raises as `load_draft`."""
    if context.config.method == "mtp":
        return _load_own_head(context)
    load = load_eagle3 if context.config.method == "eagle3" else load_eagle
    path, backend = _head_directory(context), _backend(context)
    try:
        with made_on(context.arena.device):
            return load(path, context.target.model, backend)
    except ModelLoadError as error:
        raise ConfigError(f"speculative_config: model: {error}") from error


def _load_own_head(context: ProposerContext) -> FeatureHead:
    """Return the head that the target's own files have."""
    _check_unset(context)
    target, device = context.target, context.arena.device
    try:
        return load_mtp(target.made_from, target.model, _backend(context), device)
    except ModelLoadError as error:
        raise ConfigError(f"speculative_config: method mtp: {error}") from error


def _check_unset(context: ProposerContext) -> None:
    """Refuse what belongs to a head with files of its own."""
    config, usual = context.config, SpeculationConfig(method="ngram", num_speculative_tokens=1)
    for field in ("model", "load_format", "dtype", "quantization"):
        if getattr(config, field) != getattr(usual, field):
            raise ConfigError(
                f"speculative_config: {field} is of a draft with files of its own; method mtp "
                "reads its head from the target's, as those are loaded"
            )


def load_medusa_heads(context: ProposerContext) -> MedusaHeads:
    """Return Medusa heads, at least one per draft token. Raises as `load_draft`."""
    path, wanted = _head_directory(context), context.config.max_draft_tokens
    try:
        with made_on(context.arena.device):
            heads = load_medusa(path, context.target.model)
    except ModelLoadError as error:
        raise ConfigError(f"speculative_config: model: {error}") from error
    if heads.num_heads < wanted:
        raise ConfigError(
            f"speculative_config: num_speculative_tokens is {wanted}, but model "
            f"{context.config.model!r} has {heads.num_heads} heads"
        )
    return heads


def _head_directory(context: ProposerContext) -> Path:
    """Return the directory of a head after a check: the target's dtype, own weights."""
    config = context.config
    for field, value, allowed in (
        ("load_format", config.load_format, ("auto", "safetensors")),
        ("dtype", config.dtype, ("auto", str(context.target.dtype).removeprefix("torch."))),
        ("quantization", config.quantization, ("none",)),
    ):
        if value not in allowed:
            raise ConfigError(
                f"speculative_config: {field} of method {config.method} can be "
                f"{' or '.join(allowed)}, not {value!r}"
            )
    return _directory(context)


def _directory(context: ProposerContext) -> Path:
    config = context.config
    assert config.model is not None  # the settings say so
    path = model_folder(Path(config.model))
    if not path.is_dir():
        raise ConfigError(f"speculative_config: model {config.model!r} is not a directory")
    return path


def _backend(context: ProposerContext) -> AttentionBackend:
    device = context.arena.device
    return get_backend(_backend_name(context.target, native=default_backend(device)))


def _backend_name(target: LoadedModel, *, native: str) -> str:
    """Return the target's attention backend; `native` if that is the native kernels."""
    if isinstance(target.model, CausalLM):
        return target.model.backend_name
    return native
