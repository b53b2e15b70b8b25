"""Loading of encoders from a checkpoint's directory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog
import torch

from kernels.native.build import NativeUnavailableError
from kernels.native.library import load_library
from shared.errors import ConfigError, ModelLoadError
from shared.model.checkpoint.config import read_config
from shared.model.checkpoint.files.checkpoint_files import find_checkpoint_files
from shared.model.checkpoint.files.tensor_files import stored_tensors
from shared.model.checkpoint.formats.registry import find_format
from shared.model.checkpoint.headers.checks import check_headers
from shared.model.checkpoint.headers.parts import all_headers
from shared.model.checkpoint.loading.weights import fill
from shared.model.checkpoint.origin import open_origin
from shared.model.checks import DTYPES
from shared.model.encoders.bidirectional import (
    BidirectionalDecoder,
    describe_bidirectional,
    sees_all,
)
from shared.model.encoders.encoder import Encoder
from shared.model.encoders.families import FAMILIES
from shared.model.encoders.operations import TORCH, Operations
from shared.model.encoders.products import KINDS, NativeAttention, NativeGate, NativeProducts
from shared.model.native.choice import suits_this_cpu
from shared.model.native.threads import LibraryThreads, plan_threads

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from shared.model.encoders.base import TextEncoder
    from shared.model.encoders.families import EncoderFamily
    from shared.model.encoders.spec import EncoderSpec
    from shared.model.weight_map import WeightMap

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedEncoder:
    """An encoder with its weights."""

    model: TextEncoder
    #: config.json as read.
    raw: Mapping[str, Any]
    #: Dtype of the weights.
    dtype: torch.dtype
    #: Equal on two hosts exactly if their computations are equal.
    fingerprint: str


def is_encoder(raw: Any) -> bool:
    """Return whether a parsed config.json is of a model that reads whole texts."""
    return isinstance(raw, dict) and (raw.get("model_type") in FAMILIES or sees_all(raw))


def load_encoder(
    model_dir: Path,
    *,
    dtype: str = "auto",
    num_threads: int | None = None,
    bind: str | None = None,
    implementation: str = "auto",
) -> LoadedEncoder:
    """Load an encoder onto the CPU.

    `auto` is the checkpoint's own dtype, and the native products if they run here; else `native` or
    `torch`. With native products, weights have the dtype, and all else is float32.

    Raises:
        ConfigError: an unknown name, or native products that are not there.
        ModelLoadError: the checkpoint cannot be used; names the file, and the tensor if any.
    """
    raw = read_config(model_dir)
    if not is_encoder(raw):
        raise ModelLoadError(f"{model_dir / 'config.json'} is of no encoder")
    try:
        return _load(_Wanted(model_dir, raw, dtype, num_threads, bind, implementation))
    except KeyError as error:
        raise ModelLoadError(f"{model_dir / 'config.json'}: key {error} is missing") from error
    except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
        raise ModelLoadError(f"{model_dir / 'config.json'}: a value is wrong: {error}") from error


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What `load_encoder` was given."""

    model_dir: Path
    raw: Mapping[str, Any]
    dtype: str
    num_threads: int | None
    bind: str | None
    implementation: str

    def means(self, stored: str) -> tuple[torch.dtype, torch.dtype, Operations]:
        """Return the dtypes of weights and of what flows, and what computes."""
        name = stored.removeprefix("torch.") if self.dtype == "auto" else self.dtype
        if name not in DTYPES:
            raise ConfigError(f"dtype {name[:80]!r} is unknown; known: auto, {', '.join(DTYPES)}")
        weights: torch.dtype = getattr(torch, name)
        if not self._is_native(weights):
            torch.set_num_threads(self.num_threads or torch.get_num_threads())
            return weights, weights, TORCH
        plan = plan_threads(self.num_threads, self.bind)
        # As beside native decoders: PyTorch's own pool would spin on the same cores.
        torch.set_num_threads(1)
        threads = LibraryThreads(plan)
        operations = Operations(
            method=NativeProducts(threads, weights),
            attend=NativeAttention(threads),
            gate=NativeGate(threads),
        )
        return weights, torch.float32, operations

    def _is_native(self, weights: torch.dtype) -> bool:
        if self.implementation not in ("auto", "native", "torch"):
            raise ConfigError(f"implementation {self.implementation!r}: auto, native or torch")
        if self.implementation == "torch" or weights not in KINDS:
            return False
        if self.implementation == "auto" and not suits_this_cpu():
            return False
        try:
            load_library()
        except NativeUnavailableError as error:
            if self.implementation == "native":
                raise ConfigError(f"the native kernels cannot run: {error}") from error
            log.warning("native_kernels_unavailable", reason=str(error), using="torch")
            return False
        return True


def _load(wanted: _Wanted) -> LoadedEncoder:
    raw, model_dir = wanted.raw, wanted.model_dir
    if find_format(raw) is not None:
        raise ModelLoadError(f"{model_dir / 'config.json'}: quantised encoders are not supported")
    model: TextEncoder
    if raw.get("model_type") not in FAMILIES:
        decoder = describe_bidirectional(raw)
        check_headers(model_dir, decoder)
        weights, flows, operations = wanted.means(decoder.dtype)
        with open_origin(model_dir) as origin:
            made = BidirectionalDecoder(decoder, dtype=flows, operations=operations)
            origin.fill(made.model)
            fingerprint = origin.fingerprint(raw, f"{weights}/{flows}/whole")
        model = made
    else:
        family = FAMILIES[raw["model_type"]]
        spec = family.describe(raw)
        names = _check_files(model_dir, spec, family)
        weights, flows, operations = wanted.means(spec.dtype)
        with open_origin(model_dir) as origin:
            encoder = Encoder(spec, weights=weights, dtype=flows, operations=operations)
            _fill(encoder, model_dir, names)
            fingerprint = origin.fingerprint(raw, f"{weights}/{flows}/whole")
        model = encoder
    return LoadedEncoder(model=model, raw=raw, dtype=weights, fingerprint=fingerprint)


def _check_files(model_dir: Path, spec: EncoderSpec, family: EncoderFamily) -> dict[str, str]:
    """Return by stored name: the encoder's. Reads headers only.

    Raises:
        ModelLoadError: a tensor is missing, unknown, or of another shape than the config's.
    """
    files, wanted = find_checkpoint_files(model_dir), spec.stored_names()
    found: dict[str, str] = {}
    for stored, header in all_headers(files.shards).items():
        name = _own_name(stored, family, wanted)
        if name is None:
            if _bare(stored, family).startswith(family.unread):
                continue
            raise ModelLoadError(
                f"{header.path}: tensor {stored!r} is not part of {spec.architecture} as configured"
            )
        if header.shape != wanted[name].shape:
            raise ModelLoadError(
                f"{header.path}: tensor {stored!r} has shape {list(header.shape)}, the config asks "
                f"for {list(wanted[name].shape)}"
            )
        found[stored] = name
    if missing := wanted.keys() - found.values():
        raise files.lacks(missing, len(wanted))
    return found


def _own_name(stored: str, family: EncoderFamily, wanted: WeightMap) -> str | None:
    """Return a tensor's name in the encoder; None: it has no such part."""
    for begin in family.prefixes:
        # Old files call the parts of norms gamma and beta.
        name = stored.removeprefix(begin).replace(".gamma", ".weight").replace(".beta", ".bias")
        if stored.startswith(begin) and name in wanted:
            return name
    return None


def _bare(stored: str, family: EncoderFamily) -> str:
    for begin in family.prefixes:
        if begin and stored.startswith(begin):
            return stored.removeprefix(begin)
    return stored


def _fill(encoder: Encoder, model_dir: Path, names: Mapping[str, str]) -> None:
    wanted = encoder.spec.stored_names()
    for path, stored, tensor in stored_tensors(find_checkpoint_files(model_dir).shards):
        if stored in names:
            fill(encoder, wanted[names[stored]], tensor, path, stored)
