"""What the compiled library reads and fills, field by field as in its headers."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_float, c_int, c_int64, c_size_t, c_uint32, c_void_p


class Rounding(ctypes.Structure):
    """`baton::Rounding`."""

    _fields_ = (
        ("grid", c_int),
        ("rule", c_int),
        ("bits", c_int),
        ("group", c_int),
        ("is_static", c_int),
        ("is_symmetric", c_int),
        ("even_bits", c_int),
        ("is_shared", c_int),
        ("bound", c_float),
        ("stored", c_float),
        ("zero", c_float),
    )


class BlockRows(ctypes.Structure):
    """`baton::BlockRows`."""

    _fields_ = (("begin", c_void_p), ("count", c_int), ("order", c_void_p))


class Codes(ctypes.Structure):
    """`baton::Codes`."""

    _fields_ = (
        ("kind", c_int),
        ("codes", c_void_p),
        ("least", c_int),
        ("most", c_int),
        ("table", c_void_p),
        ("scales", c_void_p),
        ("zeros", c_void_p),
        ("offsets", c_void_p),
        ("columns", c_int),
        ("inner", c_int),
        ("group", c_int),
        ("order", c_void_p),
        ("rounds_rows", c_int),
        ("rows", POINTER(BlockRows)),
    )


class Blocks(ctypes.Structure):
    """`baton::Blocks`."""

    _fields_ = (
        ("type", c_int),
        ("parts", POINTER(BlockRows)),
        ("columns", c_int),
        ("inner", c_int),
        ("rounds_rows", c_int),
    )


class Shape(ctypes.Structure):
    """`baton::Shape`."""

    _fields_ = (
        ("hidden_size", c_int),
        ("intermediate_size", c_int),
        ("vocab_size", c_int),
        ("first_token", c_int),
        ("num_tokens", c_int),
        ("token_room", c_int),
        ("norm_eps", c_float),
        ("centers", c_int),
        ("embedding_multiplier", c_float),
        ("logit_multiplier", c_float),
        ("logit_cap", c_float),
    )


class Experts(ctypes.Structure):
    """`baton::Experts`."""

    _fields_ = (
        ("router", c_void_p),
        ("choice_bias", c_void_p),
        ("weight_scales", c_void_p),
        ("up", POINTER(c_void_p)),
        ("down", POINTER(c_void_p)),
        ("num_routed", c_int),
        ("num_chosen", c_int),
        ("num_shared", c_int),
        ("has_shared_gate", c_int),
        ("is_sigmoid", c_int),
        ("is_normalised", c_int),
        ("num_groups", c_int),
        ("num_chosen_groups", c_int),
        ("is_best_one", c_int),
        ("scales_input", c_int),
        ("scale", c_float),
    )


class Latent(ctypes.Structure):
    """`baton::Latent`."""

    _fields_ = (
        ("up_keys", POINTER(c_void_p)),
        ("up_values", POINTER(c_void_p)),
        ("latent", c_int),
        ("rope", c_int),
        ("plain", c_int),
        ("value", c_int),
        ("query_rank", c_int),
        ("norm_eps", c_float),
    )


class Recurrent(ctypes.Structure):
    """`baton::Recurrent`."""

    _fields_ = (
        ("inputs", c_void_p),
        ("rates", c_void_p),
        ("kernel", c_void_p),
        ("bias", c_void_p),
        ("decay", c_void_p),
        ("step_bias", c_void_p),
        ("skip", c_void_p),
        ("norm", c_void_p),
        ("factors", c_void_p),
        ("kind", c_int),
        ("is_norm_first", c_int),
        ("channels", c_int),
        ("kernel_size", c_int),
        ("num_heads", c_int),
        ("num_groups", c_int),
        ("key_dim", c_int),
        ("head_dim", c_int),
        ("min_step", c_float),
        ("max_step", c_float),
        ("whole_groups", c_int),
        ("first_group", c_int),
        ("whole_size", c_int),
    )


class LayerInputs(ctypes.Structure):
    """`baton::LayerInputs`."""

    _fields_ = (
        ("table", c_void_p),
        ("table_kind", c_int),
        ("num_layers", c_int),
        ("size", c_int),
        ("table_factor", c_float),
        ("product_factor", c_float),
    )


class WholeHeads(ctypes.Structure):
    """`baton::WholeHeads`."""

    _fields_ = (("num_queries", c_int), ("num_keys", c_int), ("counts_keys", c_int))


class Heads(ctypes.Structure):
    """`baton::Heads`."""

    _fields_ = (
        ("num", c_int),
        ("num_kv", c_int),
        ("dim", c_int),
        ("kv_kinds", c_int),
    )


class Operation(ctypes.Structure):
    """`baton::Operation`."""

    _fields_ = (
        ("op", c_int),
        ("layer", c_int),
        ("matrix", c_void_p),
        ("first", c_void_p),
        ("second", c_void_p),
        ("third", c_void_p),
        ("cos_sin", c_void_p),
        ("experts", POINTER(Experts)),
        ("attention", POINTER(Latent)),
        ("recurrent", POINTER(Recurrent)),
        ("inputs", POINTER(LayerInputs)),
        ("whole", POINTER(WholeHeads)),
        ("heads", Heads),
        ("window", c_int),
        ("chunked", c_int),
        ("query_step", c_int),
        ("kv_group", c_int),
        ("kv_place", c_int),
        ("head_norm", c_int),
        ("activation", c_int),
        ("paired", c_int),
        ("apart", c_int),
        ("num_parts", c_int),
        ("has_gate", c_int),
        ("scale", c_float),
        ("limit", c_float),
        ("query_scale", c_float),
    )


class Weights(ctypes.Structure):
    """`baton::Weights`."""

    _fields_ = (
        ("program", POINTER(Operation)),
        ("program_size", c_int),
        ("norm", c_void_p),
        ("norm_bias", c_void_p),
        ("head", c_void_p),
        ("embedding", c_void_p),
        ("embedding_kind", c_int),
        ("positions", c_void_p),
    )


class DeltaPart(ctypes.Structure):
    """`baton::DeltaPart`."""

    _fields_ = (
        ("first_column", c_int),
        ("columns", c_int),
        ("rank", c_int),
        ("scale", c_float),
        ("a", c_void_p),
        ("b", c_void_p),
    )


class AdaptedMatrix(ctypes.Structure):
    """`baton::AdaptedMatrix`."""

    _fields_ = (
        ("matrix", c_void_p),
        ("columns", c_int),
        ("paired", c_int),
        ("num_parts", c_int),
        ("parts", POINTER(DeltaPart)),
    )


class AdapterRows(ctypes.Structure):
    """`baton::AdapterRows`."""

    _fields_ = (("first", c_int), ("end", c_int), ("adapter", c_void_p))


class Batch(ctypes.Structure):
    """`baton::Batch`."""

    _fields_ = (
        ("num_tokens", c_int),
        ("num_seqs", c_int),
        ("token_ids", c_void_p),
        ("positions", c_void_p),
        ("query_start_loc", c_void_p),
        ("seq_lens", c_void_p),
        ("block_tables", POINTER(c_void_p)),
        ("max_blocks", c_int),
        ("slots", POINTER(c_void_p)),
        ("wanted", c_void_p),
        ("num_wanted", c_int),
        ("captured_layers", c_void_p),
        ("num_captured", c_int),
        ("captured", c_void_p),
        ("states", POINTER(c_void_p)),
        ("state_strides", POINTER(c_size_t)),
        ("state_blocks", c_void_p),
        ("given", c_void_p),
        ("given_at", c_void_p),
        ("adapter_rows", POINTER(AdapterRows)),
        ("num_adapter_rows", c_int),
        ("stream", c_void_p),
    )


class KvMemory(ctypes.Structure):
    """`baton::KvMemory`."""

    _fields_ = (
        ("data", c_void_p),
        ("block_stride", c_size_t),
        ("block_size", c_int),
        ("format", c_int),
        ("scales", POINTER(c_void_p)),
    )


class Step(ctypes.Structure):
    """`baton::Step`."""

    _fields_ = (
        ("batch", Batch),
        ("kv", KvMemory),
        ("collective", c_void_p),
        ("hidden", c_void_p),
        ("logits", c_void_p),
        ("choices", c_void_p),
        ("draws", c_void_p),
        ("tokens", c_void_p),
    )


class Texts(ctypes.Structure):
    """See `Texts` of encoder/whole.h."""

    _fields_ = (
        ("queries", c_void_p),
        ("keys", c_void_p),
        ("values", c_void_p),
        ("query_stride", c_int64),
        ("key_stride", c_int64),
        ("value_stride", c_int64),
        ("out", c_void_p),
        ("lengths", c_void_p),
        ("count", c_int),
        ("heads", c_int),
        ("kv_heads", c_int),
        ("head_dim", c_int),
        ("window", c_int),
        ("scale", c_float),
    )


class Gates(ctypes.Structure):
    """See `Gates` of encoder/gates.h."""

    _fields_ = (
        ("kind", c_int),
        ("gates", c_void_p),
        ("ups", c_void_p),
        ("stride", c_int64),
        ("out", c_void_p),
        ("count", c_int),
        ("size", c_int),
    )


class CollectiveShape(ctypes.Structure):
    """`baton::CollectiveShape`."""

    _fields_ = (("size", c_int), ("buffer_bytes", c_size_t), ("one_shot_bytes", c_size_t))


class RingShape(ctypes.Structure):
    """`baton::RingShape`."""

    _fields_ = (("size", c_int), ("slots", c_uint32), ("slot_bytes", c_size_t))


class CoreUse(ctypes.Structure):
    """`baton::CoreUse`."""

    _fields_ = (
        ("own", c_int),
        ("lent", c_int),
        ("borrowed", c_int),
        ("borrowed_ns", c_int64),
        ("recalled", c_int64),
    )


class SpunTask(ctypes.Structure):
    """`baton::SpunTask`."""

    _fields_ = (
        ("begin_ns", c_int64),
        ("end_ns", c_int64),
        ("thread", c_int),
        ("core", c_int),
    )


class Failure(ctypes.Structure):
    """`baton::Failure`."""

    _fields_ = (
        ("reason", c_int),
        ("rank", c_int),
        ("found_by", c_int),
        ("act", c_int),
        ("other", c_int),
    )
