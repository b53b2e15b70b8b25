"""The tensors of a Hugging Face checkpoint, and what of a GGUF file each of them is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.errors import ConfigError
from shared.gguf.architectures import find_architecture
from shared.gguf.config import FREQUENCIES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shared.gguf.architecture import Architecture
    from shared.gguf.header import StoredTensor
    from shared.gguf.values import Values

_OUTER = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_IN_LAYER = re.compile(r"blk\.(\d{1,6})\.(\w+)\.(weight|bias)")
_OUTSIDE = re.compile(r"(\w+)\.(weight|bias)")
_STACKED = "{}"
_GATES, _UPS, _SINKS = "ffn_gate_exps", "ffn_up_exps", "attn_sinks"
_JOINED = re.compile(rf"\.({_SINKS}|{_GATES}|{_UPS}|ffn_down_exps)\.(weight|bias)$")
#: Stacks of more are no experts.
_MOST_EXPERTS = 2**14


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A tensor as the decoder knows it."""

    name: str
    stored: StoredTensor
    #: Number of the matrix in a stack of them; None: it is all of what is stored.
    expert: int | None = None
    #: Rows are heads of this number whose pairs are neighbours; None: they are halves apart.
    paired_heads: int | None = None
    #: What is stored is more by this.
    offset: float = 0.0
    #: A row is stored as a vector.
    is_row: bool = False
    #: Its rows are between those of `stored`, in turn.
    between: StoredTensor | None = None
    #: The last two dimensions are the other way round, after that.
    is_transposed: bool = False

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """As it is stored, without other experts."""
        own = self.stored.shape if self.expert is None else self.stored.shape[1:]
        return (1, *own) if self.is_row else own

    @property
    def shape(self) -> tuple[int, ...]:
        """As the decoder knows it."""
        own = self.stored_shape
        if self.between is not None:
            own = (own[0], 2 * own[1], *own[2:])
        return (*own[:-2], own[-1], own[-2]) if self.is_transposed else own

    def range_of(self, stored: StoredTensor) -> tuple[int, int]:
        """Where its bytes are in the file, and how many, of `stored` or `between`."""
        if self.expert is None:
            return stored.start, stored.num_bytes
        size = stored.num_bytes // stored.shape[0]
        return stored.start + self.expert * size, size


def find_parts(values: Values, stored: StoredTensor) -> Iterator[Part]:
    """Yield what a stored tensor is; a name that is not known stays as it is."""
    architecture = find_architecture(values)
    name = _name(architecture, stored.name)
    if name is None:
        if stored.name not in FREQUENCIES:  # the config has those
            yield Part(name=stored.name, stored=stored)
    elif architecture.joins_experts and (joined := _JOINED.search(stored.name)):
        if joined[1] != _UPS:  # they are part of what the gates are
            yield _joined(values, stored, name, *joined.groups())
    elif _STACKED in name and len(stored.shape) > 1 and stored.shape[0] <= _MOST_EXPERTS:
        for expert in range(stored.shape[0]):
            yield Part(name=name.format(expert), stored=stored, expert=expert)
    else:
        yield Part(
            name=name,
            stored=stored,
            paired_heads=_paired_heads(architecture, values, stored),
            offset=architecture.norm_offset if "norm" in stored.name else 0.0,
            is_row=stored.name.endswith("ffn_gate_inp_shexp.weight") and len(stored.shape) == 1,
        )


def _joined(values: Values, stored: StoredTensor, name: str, part: str, suffix: str) -> Part:
    """What a tensor is that has no names for single experts."""
    between = None
    if part == _GATES:
        other = stored.name.replace(_GATES, _UPS)
        between = values.header.tensors.get(other)
        if between is None or between.shape != stored.shape or between.path != stored.path:
            raise ConfigError(
                f"{stored.path}: tensor {stored.name!r} needs {other!r} of its shape in its file"
            )
    is_matrix = suffix == "weight" and part != _SINKS
    if len(stored.shape) != (1 if part == _SINKS else 3 if is_matrix else 2):
        raise ConfigError(f"{stored.path}: tensor {stored.name!r} has shape {list(stored.shape)}")
    return Part(
        name=name.removesuffix(".weight").replace(".bias", "_bias"),
        stored=stored,
        between=between,
        is_transposed=is_matrix,
    )


def _name(architecture: Architecture, stored: str) -> str | None:
    if (layer := _IN_LAYER.fullmatch(stored)) is not None:
        number, part, suffix = layer.groups()
        own = architecture.parts.get(part)
        return None if own is None else f"model.layers.{int(number)}.{own}.{suffix}"
    outside = _OUTSIDE.fullmatch(stored)
    if outside is None or outside[1] not in _OUTER:
        return None
    return f"{_OUTER[outside[1]]}.{outside[2]}"


def _paired_heads(architecture: Architecture, values: Values, stored: StoredTensor) -> int | None:
    layer = _IN_LAYER.fullmatch(stored.name)
    if not architecture.rotates_neighbours or layer is None:
        return None
    heads = values.whole("attention.head_count")
    if layer[2] == "attn_q":
        return heads
    if layer[2] == "attn_k":
        return values.find_whole("attention.head_count_kv") or heads
    return None
