"""AutoRound's own configs, for matrices in the packing of GPTQ or of AWQ."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shared.errors import ModelLoadError
from shared.model.checkpoint.formats import awq, gptq
from shared.model.checkpoint.formats.gptq import Scheme
from shared.model.checkpoint.formats.settings import Settings
from shared.model.checkpoint.patterns import check_expression, fits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.model.checkpoint.files.tensor_files import TensorHeader
    from shared.model.checkpoint.formats.base import Module
    from shared.model.checkpoint.matrices.layout import Layout

_WHERE = "quantization_config.extra_config"
#: By packing: what is added to stored zeros; None: the packing of AWQ.
_ZERO_STEPS = {
    "auto_gptq": 1,
    "auto_round:auto_gptq": 1,
    "auto_round": 0,
    "auto_round:gptqmodel": 0,
    "auto_awq": None,
    "auto_round:auto_awq": None,
}


@dataclass(frozen=True, slots=True)
class AutoRound:
    """A `quantization_config` of AutoRound."""

    usual: Scheme
    #: By expression for names of modules; None: those are not quantised.
    others: tuple[tuple[str, Scheme | None], ...]
    #: See `_ZERO_STEPS`.
    zero_step: int | None
    name: str = "auto-round"
    suffixes: frozenset[str] = gptq.SUFFIXES
    rounds_inputs: bool = False

    def layout(self, module: Module, found: Mapping[str, TensorHeader]) -> Layout | None:
        """See `StoredFormat.layout`."""
        scheme = self._scheme_of(module)
        if scheme is None:
            raise ModelLoadError(f"{module}: {_WHERE} leaves it out, but it is stored quantised")
        if self.zero_step is not None:
            return gptq.layout_of(scheme, found, self.zero_step)
        if scheme.bits != awq.BITS:
            raise ModelLoadError(f"{module}: AWQ's packing has {awq.BITS} bits, not {scheme.bits}")
        return awq.layout_of(scheme.group)

    def _scheme_of(self, module: Module) -> Scheme | None:
        for pattern, scheme in self.others:
            if fits(pattern, module.names, _WHERE):
                return scheme
        return self.usual


def read_auto_round(raw: Mapping[str, Any]) -> AutoRound:
    """Return what a config says, if its matrices are in a packing that is read.

    Raises:
        ModelLoadError: they are not, or a value is wrong; names the key.
    """
    own = Settings(raw, "quantization_config")
    own.choice("data_type", ("int",), "int")
    packing = own.choice("packing_format", _ZERO_STEPS, "missing")
    bits = own.integer("act_bits", 16)
    if bits < 16:
        raise ModelLoadError(f"quantization_config.act_bits is {bits}: rounded inputs are not read")
    usual = Scheme.read(own)
    others: list[tuple[str, Scheme | None]] = []
    for name, changes in own.objects("extra_config").items():
        each = Settings(changes, f"{_WHERE}.{name}")
        is_out = each.integer("bits", usual.bits) > gptq.BITS[-1]
        scheme = None if is_out else Scheme.read(Settings(changes, each.where), usual)
        others.append((_expression(name), scheme))
    # How the file was made has many keys, which differ from version to version.
    return AutoRound(usual, tuple(others), _ZERO_STEPS[packing])


def _expression(name: str) -> str:
    """A name of a module as an expression for it alone; others are expressions already."""
    pattern = name if set(name) & set("*+?^$|()[]\\") else f"{re.escape(name)}$"
    check_expression(pattern, _WHERE)
    return pattern
