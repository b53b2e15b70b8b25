"""Writes a quantised checkpoint, one file after the other."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from shared.errors import ModelLoadError
from shared.model.checkpoint.files.tensor_files import open_tensors
from shared.model.checkpoint.headers.contents import read_contents
from shared.model.quantize.folder import open_folder, stamps
from shared.model.quantize.gptq import quantise_for
from shared.model.quantize.layer_runner import LayerRunner
from shared.model.quantize.nearest import round_to_nearest
from shared.model.quantize.output import KvCache
from shared.model.quantize.packing import pack_matrix

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from shared.model.checkpoint.files.tensor_files import TensorFile
    from shared.model.quantize.folder import OutputFolder
    from shared.model.quantize.gptq import Hessian
    from shared.model.quantize.layer_runner import KvPeaks
    from shared.model.quantize.plan import Matrix, Piece, Source, Unit
    from shared.model.quantize.planning import Plan

#: Change it with what is written.
_VERSION = 1
#: The largest code of a cache; integers reach from -n to n - 1.
_KV_MOST = {KvCache.FP8: 448.0, KvCache.INT8: 127.5}


@dataclass(frozen=True, slots=True)
class Calibration:
    """Texts that GPTQ, and scales of a KV cache, are made for."""

    sequences: Sequence[Sequence[int]]
    #: Differs if the texts do.
    digest: str


def quantise(
    plan: Plan,
    out: Path,
    *,
    calibration: Calibration | None = None,
    kv_cache: KvCache | None = None,
) -> Iterator[Unit]:
    """Write the checkpoint of a plan; yield each file that is complete.

    With a calibration the weights of layers are those of GPTQ, otherwise they are rounded to
    nearest. A run that was interrupted goes on behind its last complete file.

    Raises:
        ConfigError: the folder cannot be written.
        ModelLoadError: a tensor is damaged, or has numbers that are not finite.
    """
    with open_folder(out, _settings(plan, calibration), plan.num_bytes) as folder:
        writer = _Writer(plan, folder, calibration, kv_cache)
        for unit in plan.units:
            writer.write(unit)
            yield unit
        folder.finish(plan.model_dir, plan.config)


def _settings(plan: Plan, calibration: Calibration | None) -> dict[str, Any]:
    """All that decides what is written."""
    paths = {source.header.path for unit in plan.units for source in unit.sources}
    return {
        "version": _VERSION,
        "source": stamps(sorted(paths)),
        "config": plan.config,
        "calibration": None if calibration is None else calibration.digest,
    }


class _Writer:
    """Writes the files of a plan, in its order."""

    def __init__(
        self,
        plan: Plan,
        folder: OutputFolder,
        calibration: Calibration | None,
        kv_cache: KvCache | None,
    ) -> None:
        self._plan = plan
        self._folder = folder
        self._kv_cache = kv_cache
        self._runner: LayerRunner | None = None
        if calibration is not None:
            self._runner = LayerRunner(plan.spec, plan.contents, calibration.sequences)

    def write(self, unit: Unit) -> None:
        """Write a file, unless it is complete; and let the calibration pass its layer."""
        if not self._folder.has(unit.file):
            with ExitStack() as stack:
                job = _UnitJob(self._plan, unit, stack)
                if self._runner is not None and unit.layer is not None:
                    self._calibrate(job, unit.layer, self._runner)
                job.finish()
                self._folder.write(unit.file, job.tensors)
        last = self._plan.spec.num_layers - 1
        if self._runner is not None and unit.layer is not None and unit.layer < last:
            contents = read_contents([self._folder.path / unit.file], self._plan.new_spec)
            self._runner.advance(unit.layer, contents, self._plan.new_spec)

    def _calibrate(self, job: _UnitJob, layer: int, runner: LayerRunner) -> None:
        for hessians, peaks in runner.hessians(layer, job.paths):
            job.add_quantised(hessians)
            if self._kv_cache is not None and layer in self._plan.attentions:
                job.add_kv_scales(self._plan.attentions[layer], peaks, self._kv_cache)


class _UnitJob:
    """The tensors of one file."""

    def __init__(self, plan: Plan, unit: Unit, stack: ExitStack) -> None:
        self._plan = plan
        self._stack = stack
        self._files: dict[Path, TensorFile] = {}
        #: Pieces whose tensors are missing.
        self._left = [(source, piece) for source in unit.sources for piece in source.pieces]
        self.tensors: dict[str, Tensor] = {}

    @property
    def paths(self) -> set[str]:
        """Of the linears that are quantised."""
        return {piece.matrix.part.module for _, piece in self._left if piece.matrix is not None}

    def add_quantised(self, hessians: Mapping[str, Hessian]) -> None:
        """Add the weights of the linears with these paths."""
        left = []
        for source, piece in self._left:
            if piece.matrix is not None and piece.matrix.part.module in hessians:
                hessian = hessians[piece.matrix.part.module]
                self._add_matrix(source, piece, piece.matrix, hessian)
            else:
                left.append((source, piece))
        self._left = left

    def add_kv_scales(self, attention: str, peaks: KvPeaks, kv_cache: KvCache) -> None:
        """Add the scales with which a layer's keys and values are kept in 8 bits."""
        for what, peak in (("k", peaks.key), ("v", peaks.value)):
            scale = max(peak / _KV_MOST[kv_cache], torch.finfo(torch.float32).eps)
            self.tensors[f"{attention}.{what}_scale"] = torch.tensor([scale])

    def finish(self) -> None:
        """Add all tensors that are missing; weights are rounded to nearest."""
        for source, piece in self._left:
            if piece.matrix is not None:
                self._add_matrix(source, piece, piece.matrix, None)
            else:
                self.tensors[piece.name] = self._read(source, piece).contiguous()
        self._left = []

    def _add_matrix(
        self, source: Source, piece: Piece, matrix: Matrix, hessian: Hessian | None
    ) -> None:
        weight = self._read(source, piece)
        try:
            if hessian is None:
                codes = round_to_nearest(weight, matrix.scheme)
            else:
                codes = quantise_for(weight, matrix.scheme, hessian)
        except ModelLoadError as error:
            raise ModelLoadError(
                f"{source.header.path}: tensor {source.name!r}: {error}"
            ) from error
        stored = pack_matrix(codes, self._plan.layouts[matrix.scheme.name])
        self.tensors |= {matrix.module + suffix: own for suffix, own in stored.items()}

    def _read(self, source: Source, piece: Piece) -> Tensor:
        path = source.header.path
        if path not in self._files:
            self._files[path] = self._stack.enter_context(open_tensors(path))
        return piece.cut(self._files[path].get_tensor(source.name), source.stored)
