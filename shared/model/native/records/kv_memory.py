"""The cache of keys and values as the native decoder takes it."""

from __future__ import annotations

from ctypes import c_void_p
from typing import TYPE_CHECKING

import torch

from kernels.kv_write.cache import QuantizedCache
from kernels.native.kinds import KvFormat
from kernels.native.structures import KvMemory
from shared.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from kernels.kv_write.cache import PagedCache

_FORMATS = {torch.int8: KvFormat.INT8, torch.float8_e4m3fn: KvFormat.FLOAT8}


def kv_memory(kv_caches: Sequence[PagedCache], dtype: torch.dtype) -> KvMemory:
    """Return all groups' keys and values in the library's format. It owns nothing.

    dtype: of the model. Groups of one arena begin at the same address.
    """
    # A stage has no layers of some groups.
    kept = [numbers for cache in kv_caches if (numbers := _numbers(cache)).numel()]
    if not kept:
        return KvMemory(block_size=1, format=KvFormat.ELEMENTS)
    first, *others = kept
    for other in others:
        if (other.data_ptr(), other.stride(0)) != (first.data_ptr(), first.stride(0)):
            raise InternalError("groups of KV that are not of one arena")
    memory = KvMemory(
        data=first.data_ptr(),
        block_stride=first.stride(0),
        block_size=first.shape[4],
        format=_format(kv_caches[0], dtype),
    )
    given = [
        cache.scales.data_ptr()
        for cache in kv_caches
        if isinstance(cache, QuantizedCache) and cache.is_static
    ]
    if given:
        memory.scales = (c_void_p * len(given))(*given)
    return memory


def _numbers(cache: PagedCache) -> Tensor:
    return cache.values if isinstance(cache, QuantizedCache) else cache


def _format(cache: PagedCache, dtype: torch.dtype) -> KvFormat:
    if isinstance(cache, QuantizedCache):
        return _FORMATS[cache.values.dtype]
    if cache.dtype != dtype:
        raise InternalError(f"a {dtype} model with a KV cache of {cache.dtype}")
    return KvFormat.ELEMENTS
