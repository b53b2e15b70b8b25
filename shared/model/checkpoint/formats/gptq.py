"""GPTQ, as AutoGPTQ and GPTQModel write it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shared.errors import ModelLoadError
from shared.model.checkpoint.formats.settings import Settings
from shared.model.checkpoint.matrices.layout import FLOATS, Array, Layout, Packing
from shared.model.checkpoint.patterns import check_expression, fits
from shared.model.matrix.rounding import Element

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from shared.model.checkpoint.files.tensor_files import TensorHeader
    from shared.model.checkpoint.formats.base import Module

_CODES, _SCALES, _ZEROS, ORDER = ".qweight", ".scales", ".qzeros", ".g_idx"
SUFFIXES = frozenset({_CODES, _SCALES, _ZEROS, ORDER})
#: Others are stored in planes, by GPTQModel alone.
BITS = (2, 3, 4, 8)
#: What AutoRound says of how it made a file in this format, or AWQ's.
AUTO_ROUND = (
    "amp",
    "autoround_version",
    "enable_minmax_tuning",
    "enable_norm_bias_tuning",
    "enable_quanted_input",
    "gradient_accumulate_steps",
    "iters",
    "low_gpu_mem_usage",
    "lr",
    "minmax_lr",
    "nsamples",
    "provider",
    "quant_block_list",
    "scale_dtype",
    "seqlen",
    "supported_types",
    "to_quant_block_names",
)
#: Keys that say how the file was made, or what other programs compute it with. `sym` and `desc_act`
#: follow from zeros and groups, which are always read.
_IGNORED = (
    *AUTO_ROUND,
    "sym",
    "desc_act",
    "method",
    "act_group_aware",
    "static_groups",
    "true_sequential",
    "damp_percent",
    "damp_auto_increment",
    "mse",
    "model_name_or_path",
    "model_file_base_name",
    "tokenizer",
    "dataset",
    "batch_size",
    "pad_token_id",
    "model_seqlen",
    "block_name_to_quantize",
    "module_name_preceding_first_block",
    "modules_in_block_to_quantize",
    "cache_block_outputs",
    "max_input_length",
    "use_exllama",
    "disable_exllama",
    "exllama_config",
    "use_cuda_fp16",
    "backend",
    "lm_head",
    "meta",
    "hyb_act",
    "offload_to_disk",
)


@dataclass(frozen=True, slots=True)
class Scheme:
    """Bits and groups of some modules."""

    bits: int
    group: int | None

    @classmethod
    def read(cls, own: Settings, usual: Scheme | None = None) -> Scheme:
        """Return what an object says; what it leaves out is as usual.

        Raises:
            ModelLoadError: a value is wrong; names the key.
        """
        bits = own.integer("bits", usual.bits if usual else None)
        group = own.integer("group_size", (usual.group or -1) if usual else None)
        if bits not in BITS:
            known = ", ".join(map(str, BITS))
            raise ModelLoadError(f"{own.where}.bits must be one of {known}, not {bits}")
        if group != -1 and group < 1:
            raise ModelLoadError(f"{own.where}.group_size must be -1 or at least 1, not {group}")
        return cls(bits, None if group == -1 else group)


@dataclass(frozen=True, slots=True)
class Gptq:
    """A `quantization_config` of GPTQ."""

    usual: Scheme
    #: By expression for names of modules; None: those are not quantised.
    others: tuple[tuple[str, Scheme | None], ...]
    #: What is added to stored zeros.
    zero_step: int
    name: str = "gptq"
    suffixes: frozenset[str] = SUFFIXES
    rounds_inputs: bool = False

    def layout(self, module: Module, found: Mapping[str, TensorHeader]) -> Layout | None:
        """See `StoredFormat.layout`."""
        scheme = self._scheme_of(module)
        if scheme is None:
            raise ModelLoadError(
                f"{module}: quantization_config.dynamic leaves it out, but it is stored quantised"
            )
        return layout_of(scheme, found, self.zero_step)

    def _scheme_of(self, module: Module) -> Scheme | None:
        for pattern, scheme in self.others:
            if fits(pattern, module.names, "quantization_config.dynamic"):
                return scheme
        return self.usual


def layout_of(scheme: Scheme, found: Container[str], zero_step: int) -> Layout:
    """Return how a matrix with tensors of these suffixes is stored.

    zero_step: what is added to stored zeros.
    """
    bits = scheme.bits
    across = Packing(bits=bits, is_along_rows=False)
    return Layout(
        element=Element.INT,
        bits=bits,
        codes=Array(suffix=_CODES, dtypes=("I32",), is_turned=True, packing=Packing(bits=bits)),
        scales=Array(suffix=_SCALES, dtypes=FLOATS, is_turned=True),
        zeros=Array(suffix=_ZEROS, dtypes=("I32",), is_turned=True, packing=across),
        zero_step=zero_step,
        is_offset=True,
        group=scheme.group,
        column_groups=ORDER if ORDER in found else None,
    )


def read_gptq(raw: Mapping[str, Any]) -> Gptq:
    """Return what a config says.

    Raises:
        ModelLoadError: a key is unknown or wrong; names it.
    """
    own = Settings(raw, "quantization_config")
    method = own.any("quant_method")
    usual = Scheme.read(own)
    others: list[tuple[str, Scheme | None]] = []
    for pattern, changes in own.objects("dynamic").items():
        where = f"quantization_config.dynamic[{pattern!r}]"
        expression = pattern.removeprefix("-:").removeprefix("+:")
        check_expression(expression, where)
        is_out = pattern.startswith("-:")
        others.append(
            (expression, None if is_out else Scheme.read(Settings(changes, where), usual))
        )
    own.choice("pack_dtype", ("int32",), "int32")
    own.choice("data_type", ("int",), "int")
    known = ("gptq", "gptq_v2")
    kind = own.choice("checkpoint_format", known, "gptq_v2" if method == "gptq_v2" else "gptq")
    kind = own.choice("format", known, kind)
    own.refuse("is_marlin_format", "the order of Marlin is not read; convert it to gptq")
    own.close(ignored=_IGNORED)
    return Gptq(usual, tuple(others), 0 if kind == "gptq_v2" else 1)
