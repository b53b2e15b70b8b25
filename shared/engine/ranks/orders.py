"""What rank 0 tells its followers, as bytes; both are the same version of the program."""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from safetensors.torch import load, save

from kernels.low_rank import LowRankPart
from shared.engine.settings.engine import EngineConfig  # noqa: TC001 read at run time by msgspec

if TYPE_CHECKING:
    from torch import Tensor

    from shared.model.adapted.base import AdapterWeights


class Kind(IntEnum):
    """The first byte of a message."""

    #: One of the structures below.
    ORDER = 0
    #: A plan to compute and to collect.
    STEP = 1
    #: A plan to launch, and the order to collect the earliest launched.
    LAUNCH = 2
    COLLECT = 3


class Load(msgspec.Struct, tag=True, frozen=True):
    """Load a rank's part of a model."""

    folder: str
    #: Arguments of `load_model`.
    options: dict[str, Any]
    expert_parallel: bool
    #: A family of models in the user's own code.
    model_class: str


class Measure(msgspec.Struct, tag=True, frozen=True):
    """Compute the largest step of a model."""

    fingerprint: str
    config: EngineConfig
    max_model_len: int


class MeasureSums(msgspec.Struct, tag=True, frozen=True):
    """Time sums between the ranks."""


class Build(msgspec.Struct, tag=True, frozen=True):
    """Allocate blocks for a model, and make its runner."""

    fingerprint: str
    config: EngineConfig
    num_blocks: int
    max_model_len: int
    #: With it, ranks of other hosts serve their blocks to rank 0: see `serve_endpoint`.
    token: bytes = b""
    #: After so long of silence their connections are lost: the group's time-out.
    timeout_s: float = 30.0


class Record(msgspec.Struct, tag=True, frozen=True):
    """Record decode steps; see `Followers.record`."""


class KeepHidden(msgspec.Struct, tag=True, frozen=True):
    """See `ModelRunner.keep_hidden`."""

    final: bool
    layers: tuple[int, ...]


class SetAdapter(msgspec.Struct, tag=True, frozen=True):
    """See `AdaptableModel.set_adapter`. weights: see `encode_weights`."""

    slot: int
    weights: bytes | None


class Unbuild(msgspec.Struct, tag=True, frozen=True):
    """Free blocks and runner."""


class Keep(msgspec.Struct, tag=True, frozen=True):
    """Free all models but these."""

    fingerprints: list[str]


Order: TypeAlias = (
    Load | Measure | MeasureSums | Build | Record | KeepHidden | SetAdapter | Unbuild | Keep
)


class Done(msgspec.Struct, tag=True, frozen=True):
    """A follower's answer to an order. After `Build` the memory's descriptor comes with it."""

    #: Of the model that was loaded.
    fingerprint: str = ""
    #: Of the program.
    version: str = ""
    #: What computes the model here: see `CausalLM.backend_name`.
    backend: str = ""
    #: Where a rank of another host serves its blocks.
    endpoint: str = ""


class Failed(msgspec.Struct, tag=True, frozen=True):
    """A follower could not follow an order."""

    error: str
    #: Whether the user's settings or files are at fault.
    is_refused: bool


Answer: TypeAlias = Done | Failed

encode_answer = msgspec.msgpack.encode


def _to_path(kind: type, value: object) -> object:
    return Path(str(value)) if issubclass(kind, Path) else value


decode_order = msgspec.msgpack.Decoder(Order, dec_hook=_to_path).decode
_ANSWERS: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def decode_answer(data: bytes) -> Answer:
    """Return a follower's answer."""
    return _ANSWERS.decode(data)


def encode_order(order: Order) -> bytes:
    """Return an order as a message."""
    return bytes([Kind.ORDER]) + msgspec.msgpack.encode(order, enc_hook=str)  # of paths


def encode_weights(weights: AdapterWeights) -> bytes:
    """Return an adapter's matrices as bytes; numbers keep all of their bits."""
    tensors: dict[str, Tensor] = {}
    places: list[tuple[str, int, float]] = []
    for path, parts in weights.items():
        for part in parts:
            tensors[f"{len(places)}a"] = part.a.contiguous()
            tensors[f"{len(places)}b"] = part.b.contiguous()
            places.append((path, part.first, part.scale))
    return msgspec.msgpack.encode((places, save(tensors)))


def decode_weights(data: bytes) -> AdapterWeights:
    """Return the matrices of these bytes."""
    places, saved = msgspec.msgpack.decode(data)
    tensors = load(saved)
    weights: dict[str, list[LowRankPart]] = {}
    for index, (path, first, scale) in enumerate(places):
        part = LowRankPart(first, tensors[f"{index}a"], tensors[f"{index}b"], scale)
        weights.setdefault(path, []).append(part)
    return weights
