"""A layer that predicts further tokens, as a head: it is in the files of the target itself.

See `shared.model.families.further`. Embedding and output head are the target's, also where the
files have copies of them. One layer predicts one token more; further ones follow from its own
predictions, with the norm of what it returned in place of the target's hidden state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from shared.model.checkpoint.config import parse_spec
from shared.model.checkpoint.files.checkpoint_files import find_checkpoint_files
from shared.model.checkpoint.formats.registry import find_format
from shared.model.checkpoint.headers.further import find_further, further_names
from shared.model.checkpoint.loading.weights import load_further
from shared.model.checkpoint.origin import Dummy
from shared.model.decoder.decoder_layer import DecoderLayer
from shared.model.decoder.layers import make_norm
from shared.model.drafts.choice import most_likely
from shared.model.families.further import further_spec
from shared.model.linear.base import DENSE
from shared.model.linear.fused import FusedLinear
from shared.model.linear.stored import AsStored
from shared.model.rope_table import rotation_tables

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from shared.model.attention.base import AttentionBackend, AttentionMetadata
    from shared.model.drafts.base import Target
    from shared.model.linear.base import LinearMethod
    from shared.model.spec.decoder import DecoderSpec


def load_mtp(
    made_from: Path | int, target: Target, backend: AttentionBackend, device: torch.device
) -> MtpHead:
    """Load the head of a target onto a device, in the dtype of the target's weights.

    made_from: the target's directory; or a seed, for weights made of it.

    Raises:
        ModelLoadError: the target has none, or it cannot be used; names the file and the tensor.
    """
    # Not the target's own: transformers' modules keep something else than their families.
    decoder = parse_spec(target.spec.raw)
    method: LinearMethod = DENSE
    if find_format(decoder.raw) is not None:
        method = AsStored(device, implementation=backend.name)
    if isinstance(made_from, int):
        further_names(decoder)
        head = MtpHead(further_spec(decoder), target, backend, method)
        Dummy(made_from).fill(head)
    else:
        files = find_checkpoint_files(made_from)
        contents = find_further(files, decoder)
        head = MtpHead(further_spec(decoder), target, backend, method)
        load_further(head, contents, decoder, files)
    return head.eval().to(device)


class MtpHead(nn.Module):
    """See `FeatureHead`. Weights are uninitialised until they are filled."""

    def __init__(
        self,
        spec: DecoderSpec,
        target: Target,
        backend: AttentionBackend,
        method: LinearMethod = DENSE,
    ) -> None:
        """Build the head. `method` is that of all its linears."""
        super().__init__()
        self.spec, self.dtype = spec, target.dtype
        # In a list PyTorch does not take it for a part of the head.
        self._targets = [target]
        size, kernels = spec.hidden_size, backend.name
        self.embedding_norm, self.feature_norm, self.norm = (
            make_norm(spec.norm, size=size, dtype=self.dtype, implementation=kernels)
            for _ in range(3)
        )
        self.projection = FusedLinear(
            in_size=2 * size, out_sizes=(size,), bias=False, dtype=self.dtype, method=method
        )
        self.layer = DecoderLayer(
            spec=spec, layer=0, backend=backend, dtype=self.dtype, method=method
        )
        #: The same, by its path in the names of tensors.
        self.layers = nn.ModuleList([self.layer])
        (table,) = rotation_tables(spec, self.dtype)
        self.cos_sin: Tensor
        self.register_buffer("cos_sin", table, persistent=False)

    @property
    def captured_layers(self) -> tuple[int, ...]:
        """See `FeatureHead.captured_layers`: the final hidden states."""
        return ()

    def features(self, hidden: Tensor) -> Tensor:
        """See `FeatureHead.features`: the hidden states unchanged."""
        return hidden.to(self.dtype)

    @torch.inference_mode()
    def forward(
        self,
        token_ids: Tensor,
        features: Tensor,
        positions: Tensor,
        kv_cache: Tensor,
        metadata: AttentionMetadata,
    ) -> Tensor:
        """See `FeatureHead.forward`."""
        embedded = self.embedding_norm(self._targets[0].embed(token_ids).to(self.dtype))
        (x,) = self.projection(torch.cat((embedded, self.feature_norm(features)), dim=-1))
        x, residual = self.layer(x, None, self.cos_sin[positions], kv_cache, metadata)
        guessed: Tensor = self.norm.of_sum(x, residual)[0]
        return guessed

    def compute_logits(self, features: Tensor) -> Tensor:
        """See `FeatureHead.compute_logits`: the target's output head."""
        return self._targets[0].compute_logits(features.to(self._targets[0].hidden_dtype))

    def most_likely(self, features: Tensor) -> Tensor:
        """See `FeatureHead.most_likely`."""
        return most_likely(self.compute_logits(features))
