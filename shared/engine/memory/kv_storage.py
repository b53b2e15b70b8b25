"""How many KV blocks there are, and the memory behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psutil
import structlog
import torch

from shared.engine.memory.kv_cache_dtype import torch_dtype
from shared.errors import ConfigError
from shared.kv.identity import namespace_hash
from shared.kv.layout import KVLayout
from shared.kv.memory import KVMemory
from shared.kv.prefault import Prefault

if TYPE_CHECKING:
    from shared.engine.config import EngineConfig
    from shared.model.loader import LoadedModel

log = structlog.get_logger(__name__)


def read_layout(loaded: LoadedModel, config: EngineConfig) -> KVLayout:
    """The shape of the model's blocks.

    Raises:
        ConfigError: they cannot have the KV dtype that is asked for.
    """
    kv_dtype = torch_dtype(config.kv_cache_dtype, loaded.dtype, torch.device(config.device))
    layout = KVLayout(
        num_layers=loaded.spec.num_layers,
        num_kv_heads=loaded.spec.attention.num_kv_heads,
        block_size=config.block_size,
        head_dim=loaded.spec.attention.head_dim,
        dtype=_name(kv_dtype),
    )
    if layout.is_quantized and layout.block_size * layout.head_dim % 4:
        raise ConfigError(
            f"kv_cache_dtype {config.kv_cache_dtype!r} needs scales on whole words: block_size "
            f"{layout.block_size} times head size {layout.head_dim} is no multiple of 4"
        )
    return layout


def read_namespace(loaded: LoadedModel, layout: KVLayout) -> bytes:
    """What the hashes of the model's blocks start from."""
    return namespace_hash(
        model_fingerprint=loaded.fingerprint,
        dtype=_name(loaded.dtype),
        kv_dtype=layout.dtype,
        layout_version=layout.version,
        block_size=layout.block_size,
    )


def plan_memory(config: EngineConfig, layout: KVLayout, *, model_limit: int) -> tuple[int, int]:
    """Number of blocks, and the longest sequence. The pool holds at least one of that length.

    Raises:
        ConfigError: the settings contradict each other, the model or the memory.
    """
    max_model_len = config.max_model_len or model_limit
    num_blocks = choose_num_blocks(config, layout, max_model_len=max_model_len)
    max_model_len = choose_max_model_len(
        config, layout, num_blocks=num_blocks, model_limit=model_limit
    )
    config.check_unchunked(max_model_len)
    return num_blocks, max_model_len


def choose_num_blocks(config: EngineConfig, layout: KVLayout, *, max_model_len: int) -> int:
    """As configured, or what the share of free memory holds, but no more than could be in use.

    Raises:
        ConfigError: there is not even room for one block.
    """
    if config.num_blocks is not None:
        return config.num_blocks
    if config.kv_cache_memory_bytes is not None:
        num_blocks, knob = config.kv_cache_memory_bytes // layout.block_bytes, "set memory"
    else:
        most = layout.num_blocks(max_model_len) * config.max_num_seqs
        num_blocks, knob = min(_free_bytes(config) // layout.block_bytes, most), "free memory"
    if num_blocks < 1:
        raise ConfigError(
            f"no room for a KV block of {layout.block_bytes} bytes in the {knob}: set num_blocks, "
            "or a larger kv_cache_memory_bytes or memory utilization"
        )
    return num_blocks


def choose_max_model_len(
    config: EngineConfig, layout: KVLayout, *, num_blocks: int, model_limit: int
) -> int:
    """As configured, or as long as the model and the pool allow.

    Raises:
        ConfigError: the configured length does not fit the model or the pool.
    """
    pool_limit = num_blocks * layout.block_size
    if config.max_model_len is None:
        if pool_limit < model_limit:
            log.warning(
                "max_model_len_reduced",
                max_model_len=pool_limit,
                model_limit=model_limit,
                reason=f"the KV pool has {num_blocks} blocks of {layout.block_size} tokens",
            )
        return min(model_limit, pool_limit)
    config.check_model_limit(model_limit)
    if config.max_model_len > pool_limit:
        needed = layout.num_blocks(config.max_model_len)
        raise ConfigError(
            f"max_model_len is {config.max_model_len}, but {num_blocks} blocks of "
            f"{layout.block_size} hold {pool_limit} tokens: set num_blocks to at least {needed} "
            f"(kv_cache_memory_bytes {needed * layout.block_bytes}), or a lower max_model_len"
        )
    return config.max_model_len


class KVStorage:
    """The tensor that the model reads and writes, and on the host the memory peers can map."""

    def __init__(
        self,
        layout: KVLayout,
        num_blocks: int,
        *,
        device: torch.device,
        num_scratch_blocks: int = 0,
    ) -> None:
        """Scratch blocks lie behind the others, and no sequence ever owns one."""
        num_blocks += num_scratch_blocks
        shape = (
            num_blocks,
            layout.num_layers,
            2,
            layout.num_kv_heads,
            layout.block_size,
            layout.row_elements,
        )
        dtype = getattr(torch, layout.dtype)
        #: None where the blocks live on an accelerator.
        self.memory: KVMemory | None = None
        self.layout = layout
        self._block_bytes = layout.block_bytes
        self._prefault: Prefault | None = None
        if device.type == "cpu":
            self.memory = KVMemory(layout, num_blocks)
            self._prefault = Prefault(self.memory.buffer)
            flat = torch.frombuffer(self.memory.buffer, dtype=torch.uint8)
            self.tensor = flat.view(dtype).view(shape)
        else:
            self.tensor = torch.zeros(shape, dtype=dtype, device=device)

    def reach(self, num_blocks: int) -> None:
        """The first `num_blocks` blocks are in use: have the memory of the next ones made ready."""
        if self._prefault is not None:
            self._prefault.reach(num_blocks * self._block_bytes)

    def close(self) -> None:
        """Give the memory back. The engine must not step any more."""
        self.tensor = torch.empty(0)
        if self._prefault is not None:
            self._prefault.close()
        if self.memory is not None:
            self.memory.close()


def _free_bytes(config: EngineConfig) -> int:
    device = torch.device(config.device)
    if device.type == "cpu":
        return int(psutil.virtual_memory().available * config.cpu_memory_utilization)
    free, _ = torch.cuda.mem_get_info(device)
    return int(free * config.gpu_memory_utilization)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
