"""Loads a model from a checkpoint's directory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING

import structlog
import torch
from torch import nn

from kernels.native.kinds import Kind
from shared.errors import ConfigError, InternalError
from shared.model.attention.registry import default_backend, get_backend
from shared.model.checkpoint.format_name import narrowing
from shared.model.checkpoint.formats.registry import find_format
from shared.model.checkpoint.headers.units import read_units
from shared.model.checkpoint.loading.heap import blocks_used_again, large_blocks_apart
from shared.model.checkpoint.origin import Dummy, open_origin
from shared.model.checks import DTYPES as DTYPE_NAMES
from shared.model.checks import (
    backend_of,
    check_model,
    dtype_name,
    rounds_inputs_of_int4,
    uses_transformers,
)
from shared.model.decoder.causal_lm import CausalLM
from shared.model.device import made_on, read_device
from shared.model.linear.base import DENSE, UnlikeInputsError
from shared.model.linear.narrow import Narrow, check_quantization
from shared.model.linear.stored import AsStored
from shared.model.loaded import LoadedModel
from shared.model.matrix.nearest import GROUP
from shared.model.native.choice import refuse_native, wants_native, why_not_by_ranks
from shared.model.native.model import WEIGHT_KINDS, NativeCausalLM
from shared.model.native.packing.float8s import PackingFloat8s
from shared.model.native.packing.fours import PackingFours
from shared.model.native.packing.packing import Packing
from shared.model.native.rank import NativeStageLM, ShardedNativeLM
from shared.model.native.threads import LibraryThreads, plan_threads
from shared.model.sharding.checks import check_narrowing, check_ranks
from shared.model.sharding.model import ShardedCausalLM
from shared.model.sharding.shards import Shards
from shared.model.sharding.stage import StageCausalLM
from shared.ranks.alone import Alone

if TYPE_CHECKING:
    from pathlib import Path

    from shared.model.attention.base import AttentionBackend
    from shared.model.linear.base import LinearMethod
    from shared.model.native.threads import ThreadPlan
    from shared.model.sharding.split import Split
    from shared.model.spec.decoder import DecoderSpec
    from shared.ranks.base import Collective, Pipe

log = structlog.get_logger(__name__)

#: Loads that take less are not logged.
_LONG_S = 2.0
DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in DTYPE_NAMES}


def load_model(
    model_dir: Path,
    *,
    dtype: str = "auto",
    load_format: str = "auto",
    seed: int = 0,
    device: str | torch.device = "cpu",
    attention_backend: str = "auto",
    quantization: str = "none",
    num_threads: int | None = None,
    bind: str | None = None,
    borrows_cores: bool = False,
    beside: LoadedModel | None = None,
    model_impl: str = "auto",
    trust_remote_code: bool = False,
    cpu_int4_compute: str = "auto",
    for_vectors: bool = False,
    split: Split | None = None,
    seat: tuple[int, int] | None = None,
    collective: Collective | None = None,
    pipe: Pipe | None = None,
) -> LoadedModel:
    """Load a checkpoint, or make its weights from a seed with `load_format="dummy"`.

    `auto` is the checkpoint's own dtype, any format of files, and as the backend the native kernels
    if they run on a CPU, Triton's on a GPU, otherwise torch. `num_threads`, `bind`,
    `borrows_cores`: see `plan_threads`. `quantization` narrows the weights, or names the format
    that they have: on a CPU the native kernels compute int8 and int4 (`cpu_int4_compute`: see
    `rounds_inputs_of_int4`), otherwise PyTorch or Triton. A draft is loaded `beside` its target,
    with whose steps it takes turns: they share threads, and its KV is one group. `model_impl`:
    `transformers` has its modules compute, which `auto` does for models without a family; with
    `trust_remote_code` a module of the model's own directory. `for_vectors`: it writes no answers,
    so that products have many rows, and float32 is kept for these. `split`: only a rank's part is
    read, whose sums with those of the other ranks of its stage `collective` makes, and whose
    results move to the next stage by `pipe`; all of them load at the same time. `seat`: the rank's
    number among those of its host, which divide threads and cores, and how many these are; None: of
    all ranks.

    Raises:
        ConfigError: an unknown name, or a device or native kernels that are not there; says why.
        ModelLoadError: the checkpoint cannot be used; names the file, and the tensor if any.
    """
    spec = check_model(
        model_dir,
        dtype=dtype,
        load_format=load_format,
        quantization=quantization,
        attention_backend=attention_backend,
        device=str(device),
        model_impl=model_impl,
        trust_remote_code=trust_remote_code,
        cpu_int4_compute=cpu_int4_compute,
    )
    quantization = narrowing(model_dir, quantization)
    attention_backend = backend_of(model_impl, attention_backend)
    if split is not None and split.num_ranks > 1:
        check_ranks(split, is_module=uses_transformers(model_dir, model_impl))
        if attention_backend in ("auto", "native"):
            reason = why_not_by_ranks(split, collective)
            if reason is not None:
                refuse_native(reason, attention_backend, quantization, read_device(device))
                attention_backend = default_backend(read_device(device))
    place = read_device(device)
    rank, num_ranks = (0, 1) if split is None else (split.number, split.num_ranks)
    rank, num_ranks = seat or (rank, num_ranks)
    plan = plan_threads(num_threads, bind, rank=rank, num_ranks=num_ranks, borrows=borrows_cores)
    torch.set_num_threads(num_threads or torch.get_num_threads())
    wanted = _Wanted(
        replace(spec, keeps_all_kv=beside is not None),
        seed if load_format == "dummy" else model_dir,
        get_backend(_python_backend(attention_backend, place)),
        dtype_name(spec, dtype),
        quantization,
        place,
        cpu_int4_compute,
        _part(
            spec,
            split,
            collective,
            pipe,
            None if load_format == "dummy" else model_dir,
            quantization,
        ),
        for_vectors,
    )
    check_quantization(quantization, place)
    if uses_transformers(model_dir, model_impl):
        return wanted.load_module(model_dir, trust_remote_code=trust_remote_code)
    if wants_native(wanted.spec, attention_backend, quantization, wanted.dtype, place):
        if split is not None:
            check_narrowing(split, quantization, natively=True)
        try:
            return wanted.load(wanted.packing(_threads(plan, beside)))
        except UnlikeInputsError as error:
            if split is not None and split.num_stages > 1:
                # Other stages may have no such layers, and would go on natively.
                raise ConfigError(
                    f"{split.description}: {error}, so the native kernels cannot run; take "
                    "--attention-backend torch"
                ) from error
            refuse_native(str(error), attention_backend, quantization, place)
    if split is not None:
        check_narrowing(split, quantization, natively=False)
    return wanted.load(wanted.method())


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A model to be loaded."""

    spec: DecoderSpec
    #: A directory, or a seed.
    made_from: Path | int
    backend: AttentionBackend
    dtype: str
    quantization: str
    place: torch.device
    int4_compute: str
    #: A rank's part; None: all of it.
    part: tuple[Shards, Collective, Pipe | None] | None = None
    for_vectors: bool = False

    @property
    def weights(self) -> str:
        """The format of the linears."""
        return self.dtype if self.quantization == "none" else self.quantization

    def packing(self, threads: LibraryThreads) -> Packing:
        """Return the format's method for the native kernels."""
        rounds = rounds_inputs_of_int4(self.int4_compute, self.dtype)
        if self.quantization == "int4":
            return PackingFours(threads, WEIGHT_KINDS[self.dtype], rounds_inputs=rounds)
        if self.quantization == "fp8":
            return PackingFloat8s(threads, WEIGHT_KINDS[self.dtype])
        kind = WEIGHT_KINDS[self.weights]
        if self.for_vectors and kind is Kind.FLOAT32:
            kind = Kind.FLOAT_PARTS
        return Packing(threads, kind, rounds_inputs=rounds)

    def method(self) -> LinearMethod:
        """Return the format's method for PyTorch and Triton."""
        if self.quantization == "none":
            if find_format(self.spec.raw) is None:
                return DENSE
            return AsStored(self.place, implementation=self.backend.name)
        return Narrow(self.quantization, self.place, implementation=self.backend.name)

    def load(self, method: LinearMethod) -> LoadedModel:
        """Load a model of a family."""
        spec, dtype, start = self.spec, DTYPES[self.dtype], monotonic()
        with made_on(self.place if method is DENSE else torch.device("cpu")):
            model = self._make(dtype, method).eval()
        with open_origin(self.made_from) as origin:
            # Packed weights are in memory of the library, and the C library's has one at a time.
            heap = blocks_used_again if isinstance(method, Packing) else large_blocks_apart
            with heap():
                origin.fill(model)
            computing = _computing(model, method, self.place)
            kv_scales = origin.kv_scales(spec)
            how = f"{self.dtype}/{self.weights}"
            if isinstance(method, PackingFours):  # other numbers than those of PyTorch's int4
                how += f"/{method.description}"
            fingerprint = origin.fingerprint(spec.raw, how)
        loaded = LoadedModel.of(
            computing,
            spec,
            dtype,
            fingerprint,
            self.made_from,
            kv_scales,
            self.int4_compute,
            None if self.part is None else self.part[0],
        )
        _log_time(monotonic() - start, loaded.num_weight_bytes)
        return loaded

    def _make(self, dtype: torch.dtype, method: LinearMethod) -> CausalLM:
        """Return the modules, whose weights are not filled yet."""
        if self.part is None:
            return CausalLM(spec=self.spec, backend=self.backend, dtype=dtype, method=method)
        shards, collective, pipe = self.part
        if pipe is None:
            return ShardedCausalLM(
                shards=shards,
                collective=collective,
                backend=self.backend,
                dtype=dtype,
                method=method,
            )
        return StageCausalLM(
            shards=shards,
            collective=collective,
            pipe=pipe,
            backend=self.backend,
            dtype=dtype,
            method=method,
        )

    def load_module(self, model_dir: Path, *, trust_remote_code: bool) -> LoadedModel:
        """Load a model that transformers computes."""
        # transformers takes seconds to import, and families do not need it.
        from shared.model.generic.kv_scales import read_module_scales  # noqa: PLC0415
        from shared.model.generic.linears import narrow_linears  # noqa: PLC0415
        from shared.model.generic.loading import empty_module, load_module  # noqa: PLC0415
        from shared.model.generic.model import TransformersCausalLM  # noqa: PLC0415
        from shared.model.generic.self_check import check_results  # noqa: PLC0415

        dtype = DTYPES[self.dtype]
        method, trusts, kv_scales = self.method(), trust_remote_code, None
        with open_origin(self.made_from) as origin:
            if isinstance(origin, Dummy):
                module = empty_module(model_dir, dtype=dtype, trust_remote_code=trusts)
                origin.fill(module)
            else:
                module = load_module(
                    model_dir,
                    origin.files,
                    dtype=dtype,
                    stored=find_format(self.spec.raw),
                    method=method,
                    trust_remote_code=trusts,
                )
                kv_scales = read_module_scales(origin.files, self.spec, module)
            if self.quantization != "none":
                narrow_linears(module, method)
            nn.Module.to(module, self.place)
            torch.set_num_threads(1)
            model = TransformersCausalLM(module, self.spec, self.backend)
            check_results(model, self.place)
            # Its blocks are not those of a family: heads may lie in another order.
            how = f"{self.dtype}/{self.weights}/transformers"
            fingerprint = origin.fingerprint(self.spec.raw, how)
        return LoadedModel.of(model, model.spec, dtype, fingerprint, self.made_from, kv_scales)


def _part(
    spec: DecoderSpec,
    split: Split | None,
    collective: Collective | None,
    pipe: Pipe | None,
    made_from: Path | None,
    quantization: str,
) -> tuple[Shards, Collective, Pipe | None] | None:
    """Return a rank's part of a decoder; None: there is one rank."""
    if split is None or split.num_ranks == 1:
        return None
    if collective is None and split.size == 1:
        collective = Alone()
    if collective is None or (collective.rank, collective.size) != (split.rank, split.size):
        raise InternalError(f"{split} has no collective operations of its own")
    if (pipe is None) != (split.num_stages == 1):
        raise InternalError(f"{split} has no pipe, or has one for nothing")
    units = {} if made_from is None else read_units(made_from, spec)
    shards = Shards(spec, split, units)
    # Weights that become codes of 4 bits share scales, too.
    own = shards.in_groups_of(GROUP) if quantization == "int4" else shards
    return own, collective, pipe


def _log_time(seconds: float, num_bytes: int) -> None:
    if seconds >= _LONG_S:
        log.info("model_loaded", seconds=round(seconds, 1), weights_gb=round(num_bytes / 1e9, 2))


def _computing(
    model: CausalLM, method: LinearMethod, place: torch.device
) -> CausalLM | NativeCausalLM:
    """Return the model in the form that computes its steps, on its device."""
    # PyTorch keeps only the calling thread: its own pool would spin on the same cores between the
    # steps, and its remaining work beside the native kernels is too small to share.
    torch.set_num_threads(1)
    if isinstance(method, Packing):
        if isinstance(model, StageCausalLM):
            return NativeStageLM(model, method)
        if isinstance(model, ShardedCausalLM):
            return ShardedNativeLM(model, method)
        return NativeCausalLM(model, method)
    if method is not DENSE:
        model.to(place)
    model.cos_sin = [table.to(place) for table in model.cos_sin]
    return model


def _threads(plan: ThreadPlan, beside: LoadedModel | None) -> LibraryThreads:
    """Return the threads of the other model, if it has some."""
    if beside is not None and isinstance(beside.model, NativeCausalLM):
        return beside.model.threads
    return LibraryThreads(plan)


def _python_backend(name: str, device: torch.device) -> str:
    """Return the backend in Python; native kernels take their weights from such a model, too."""
    return default_backend(device) if name in ("auto", "native") else name
