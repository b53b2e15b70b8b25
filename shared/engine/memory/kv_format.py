"""What an engine keeps keys and values as."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from shared.engine.settings.kv_cache_names import AUTO, CHECKPOINT, TORCH_NAMES, check_name
from shared.errors import ConfigError, ModelLoadError

if TYPE_CHECKING:
    from shared.model.checkpoint.kv_scales import KVScales
    from shared.model.loaded import LoadedModel

#: CUDA's first architecture with float8; before it, Triton has no conversion.
_FLOAT8_CAPABILITY = (8, 9)


@dataclass(frozen=True, slots=True)
class KVFormat:
    """The type of the numbers, and their scales if the checkpoint has them."""

    dtype: torch.dtype
    #: None: the numbers have no scale, or each token has its own.
    scales: KVScales | None = None

    def of_groups(self, loaded: LoadedModel) -> tuple[torch.Tensor, ...] | None:
        """Return float32 [layers, 2, num_kv_heads] of each group with keys; None: not stored.

        The layers and heads are those that this rank keeps.
        """
        if self.scales is None:
            return None
        spec, shards = loaded.spec, loaded.shards
        groups = spec.kv_groups[: spec.num_token_groups]
        if shards is None:
            return tuple(self.scales.of_layers(layers) for layers in groups)
        found = []
        for layers in groups:
            kept = shards.kept_heads(layers[0])
            own = torch.tensor([layer in shards.layers for layer in layers])
            found.append(self.scales.of_layers(layers)[own, :, kept.start : kept.stop])
        return tuple(found)


def choose_format(name: str, loaded: LoadedModel, device: torch.device) -> KVFormat:
    """Return what the setting `name` means for a model.

    Raises:
        ConfigError: the name is unknown, the device cannot convert such numbers, or the model has
            not what is asked for.
        ModelLoadError: a scale of the checkpoint is missing or wrong; names it.
    """
    check_name(name)
    scales = _stored(name, loaded)
    wanted = TORCH_NAMES[name] if scales is None else scales.dtype
    dtype: torch.dtype = loaded.dtype if wanted is None else getattr(torch, wanted)
    if dtype.itemsize > 1 and dtype != loaded.dtype:
        raise ConfigError(
            f"kv_cache_dtype {name!r}: keys and values of a {loaded.dtype} model are kept as that, "
            "or in 8 bits"
        )
    if dtype == torch.float8_e4m3fn and device.type == "cuda":
        _check_float8(name, device)
    return KVFormat(dtype, scales)


def _stored(name: str, loaded: LoadedModel) -> KVScales | None:
    if name not in (AUTO, CHECKPOINT):
        return None
    if loaded.kv_scales is None:
        if name == AUTO:
            return None
        raise ConfigError(
            "kv_cache_dtype 'checkpoint': the checkpoint has no scales for keys and values, or its "
            "config does not say what for: take int8 or fp8, with a scale for each token"
        )
    try:
        return loaded.kv_scales.check(loaded.spec)
    except ModelLoadError as error:
        own = str(loaded.dtype).removeprefix("torch.")
        raise ModelLoadError(
            f"{error}; --kv-cache-dtype {own}, int8 or fp8 does without the checkpoint's scales"
        ) from error


def _check_float8(name: str, device: torch.device) -> None:
    capability = torch.cuda.get_device_capability(device)
    if capability < _FLOAT8_CAPABILITY:
        raise ConfigError(
            f"kv_cache_dtype {name!r} needs float8, hence compute capability 8.9, {device} has "
            f"{'.'.join(map(str, capability))}: take int8"
        )
