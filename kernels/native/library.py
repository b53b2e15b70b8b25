"""The compiled library's functions, with their types."""

from __future__ import annotations

import ctypes
import functools
from ctypes import POINTER, c_char_p, c_int, c_int64, c_size_t, c_void_p

from kernels.native.build import NativeUnavailableError, build_library
from kernels.native.structures import (
    AdaptedMatrix,
    Blocks,
    Codes,
    CollectiveShape,
    CoreUse,
    Failure,
    Gates,
    RingShape,
    Rounding,
    Shape,
    SpunTask,
    Step,
    Texts,
    Weights,
)

#: Result and arguments of every function of api.cpp.
_SIGNATURES = {
    "baton_pool_new": (c_void_p, (c_int, POINTER(c_int), c_int)),
    "baton_pool_delete": (None, (c_void_p,)),
    "baton_pool_share": (None, (c_void_p, c_void_p)),
    "baton_pool_take": (None, (c_void_p,)),
    "baton_pool_lend": (None, (c_void_p,)),
    "baton_pool_spin": (c_int, (c_void_p, c_int, c_int64, POINTER(SpunTask))),
    "baton_cores_join": (
        c_void_p,
        (c_char_p, c_int, c_int, POINTER(c_int), POINTER(c_int)),
    ),
    "baton_cores_leave": (None, (c_void_p,)),
    "baton_cores_use": (None, (c_void_p, POINTER(CoreUse))),
    "baton_cores_delete": (None, (c_void_p,)),
    "baton_matrix_new": (
        c_void_p,
        (c_void_p, c_int, c_void_p, c_int, c_int, c_int, c_void_p, c_int, c_void_p),
    ),
    "baton_matrix_of_codes": (c_void_p, (c_void_p, POINTER(Codes), c_void_p, c_int)),
    "baton_matrix_of_blocks": (c_void_p, (c_void_p, POINTER(Blocks), c_void_p, c_int)),
    "baton_matrix_round_rows": (None, (c_void_p, POINTER(Rounding))),
    "baton_matrix_bytes": (c_size_t, (c_void_p,)),
    "baton_matrix_multiply": (c_int, (c_void_p, c_void_p, c_void_p, c_int, c_void_p)),
    "baton_matrix_delete": (None, (c_void_p,)),
    "baton_gate_rows": (None, (c_void_p, POINTER(Gates))),
    "baton_whole_attention": (c_int, (c_void_p, POINTER(Texts))),
    "baton_checksum_blocks": (None, (c_void_p, c_int, c_size_t, c_void_p)),
    "baton_copy_ranges": (None, (c_void_p, c_void_p, c_int64, c_void_p, c_void_p)),
    "baton_copy_blocks": (None, (c_void_p, c_void_p, c_int, c_size_t, c_void_p)),
    "baton_stream_room": (c_size_t, (c_size_t,)),
    "baton_pack_ranges": (c_size_t, (c_void_p, c_int64, c_void_p, c_void_p, c_void_p)),
    "baton_unpack_ranges": (
        c_int,
        (c_void_p, c_size_t, c_void_p, c_int64, c_void_p, c_void_p),
    ),
    "baton_choose_tokens": (
        c_int,
        (c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p),
    ),
    "baton_draw_uniforms": (None, (c_void_p, c_void_p, c_int, c_void_p)),
    "baton_adapter_new": (c_void_p, (c_int, POINTER(AdaptedMatrix), c_int)),
    "baton_adapter_bytes": (c_size_t, (c_void_p,)),
    "baton_adapter_delete": (None, (c_void_p,)),
    "baton_decoder_new": (c_void_p, (c_void_p, POINTER(Shape), POINTER(Weights), c_int)),
    "baton_decoder_delete": (None, (c_void_p,)),
    "baton_decoder_advance": (c_int, (c_void_p, POINTER(Step), c_int, c_int64)),
    "baton_decoder_layers": (c_int, (c_void_p,)),
    "baton_decoder_embeddings": (c_int, (c_void_p, c_void_p, c_int, c_void_p, c_void_p)),
    "baton_decoder_logits": (c_int, (c_void_p, c_void_p, c_int, c_void_p, c_void_p)),
    "baton_collective_bytes": (c_size_t, (POINTER(CollectiveShape),)),
    "baton_collective_new": (
        c_void_p,
        (c_int, c_int, POINTER(CollectiveShape), c_int64, c_int64, POINTER(c_int)),
    ),
    "baton_collective_delete": (None, (c_void_p,)),
    "baton_collective_failure": (None, (c_void_p, POINTER(Failure))),
    "baton_all_reduce": (c_int, (c_void_p, c_void_p, c_size_t, c_int)),
    "baton_all_gather": (c_int, (c_void_p, c_void_p, c_size_t, c_size_t, c_void_p)),
    "baton_broadcast": (c_int, (c_void_p, c_void_p, c_size_t, c_int)),
    "baton_barrier": (c_int, (c_void_p,)),
    "baton_ring_bytes": (c_size_t, (POINTER(RingShape),)),
    "baton_ring_new": (
        c_void_p,
        (c_int, c_int, POINTER(RingShape), c_int64, c_int64, POINTER(c_int)),
    ),
    "baton_ring_delete": (None, (c_void_p,)),
    "baton_ring_failure": (None, (c_void_p, POINTER(Failure))),
    "baton_ring_send": (c_int, (c_void_p, c_void_p, c_size_t)),
    "baton_ring_drain": (c_int, (c_void_p,)),
    "baton_ring_receive": (
        c_int,
        (c_void_p, c_void_p, c_size_t, c_int64, POINTER(c_size_t)),
    ),
}


@functools.cache
def load_library() -> ctypes.CDLL:
    """Return the library, compiled if it is not cached. Its functions release the GIL.

    Raises:
        NativeUnavailableError: see `build_library`.
    """
    path = build_library()
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeUnavailableError(f"{path} cannot be loaded: {error}") from error
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
