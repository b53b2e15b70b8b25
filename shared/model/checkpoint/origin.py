"""The source of a model's weights: one object fills in and names them."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from shared.model.checkpoint.files.checkpoint_files import find_checkpoint_files
from shared.model.checkpoint.hashes.fingerprint import fingerprint_checkpoint, fingerprint_dummy
from shared.model.checkpoint.hashes.shard_hashes import ShardHashes
from shared.model.checkpoint.kv_scales import read_kv_scales
from shared.model.checkpoint.loading.weights import fill_slice, load_weights
from shared.model.linear.fused import FusedLinear
from shared.model.sharding.model import ShardedCausalLM

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from torch import nn

    from shared.model.checkpoint.files.checkpoint_files import CheckpointFiles
    from shared.model.checkpoint.kv_scales import StoredKVScales
    from shared.model.decoder.causal_lm import CausalLM
    from shared.model.spec.decoder import DecoderSpec

#: Standard deviation of dummy weights, as transformers initialises.
_DUMMY_STD = 0.02


@contextmanager
def open_origin(made_from: Path | int) -> Iterator[Checkpoint | Dummy]:
    """Open a checkpoint's directory, or a seed. Load everything inside the context.

    Raises:
        ModelLoadError: the directory has no weights.
    """
    if isinstance(made_from, int):
        yield Dummy(made_from)
        return
    files = find_checkpoint_files(made_from)
    with ShardHashes(files.shards) as hashes:
        yield Checkpoint(files, hashes)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Files.

    They are hashed from the beginning of the context on, in parallel to everything else.
    """

    files: CheckpointFiles
    hashes: ShardHashes

    def fill(self, model: CausalLM) -> None:
        """Load the model's weights.

        Raises:
            ModelLoadError: the files do not fit the model, or are damaged.
        """
        load_weights(model, self.files)

    def kv_scales(self, spec: DecoderSpec) -> StoredKVScales | None:
        """See `read_kv_scales`."""
        return read_kv_scales(self.files, spec)

    def fingerprint(self, raw_config: Mapping[str, Any], dtype: str) -> str:
        """Return the fingerprint of the loaded weights. Waits until every byte has been hashed.

        Raises:
            ModelLoadError: a file was changed meanwhile.
        """
        return fingerprint_checkpoint(self.hashes.digests(), raw_config, dtype)


@dataclass(frozen=True, slots=True)
class Dummy:
    """A seed. Weights are drawn on the host in float32, so they are equal on every device."""

    seed: int

    def fill(self, model: nn.Module) -> None:
        """Make the model's weights."""
        generator = torch.Generator().manual_seed(self.seed)
        drawn = model.whole() if isinstance(model, ShardedCausalLM) else model
        for name, parameter in list(drawn.named_parameters()):
            values: torch.Tensor | float = 1.0
            if not name.endswith(("norm.weight", "scale")):
                values = torch.empty(parameter.shape).normal_(0.0, _DUMMY_STD, generator=generator)
            if isinstance(model, ShardedCausalLM):
                fill_slice(model, name, values)
                continue
            if isinstance(values, float):
                parameter.fill_(values)
                continue
            owner = model.get_submodule(name.rpartition(".")[0])
            if isinstance(owner, FusedLinear):
                owner.fill(name.rpartition(".")[2], values)
            else:
                parameter.copy_(values)

    def kv_scales(self, spec: DecoderSpec) -> None:
        """Return None: nothing was calibrated."""

    def fingerprint(self, raw_config: Mapping[str, Any], dtype: str) -> str:
        """Return the fingerprint of the weights that `fill` made."""
        return fingerprint_dummy(raw_config, dtype, self.seed)
