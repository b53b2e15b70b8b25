"""A model that is loaded: what computes it, what it is, and what it was made from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from shared.model.checkpoint.kv_scales import StoredKVScales
    from shared.model.decoder.causal_lm import CausalLM
    from shared.model.generic.model import TransformersCausalLM
    from shared.model.native.model import NativeCausalLM
    from shared.model.sharding.shards import Shards
    from shared.model.spec.decoder import DecoderSpec

AnyCausalLM: TypeAlias = "CausalLM | NativeCausalLM | TransformersCausalLM"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model with its weights."""

    model: AnyCausalLM
    spec: DecoderSpec
    dtype: torch.dtype
    #: Equal on two hosts exactly if their computations are equal.
    fingerprint: str
    num_weight_bytes: int
    #: The directory, or the seed of dummy weights.
    made_from: Path | int
    #: The checkpoint's, for keys and values in 8 bits; None: it has none.
    kv_scales: StoredKVScales | None = None
    #: What codes of 4 bits were loaded with; a draft beside it takes the same.
    cpu_int4_compute: str = "auto"
    #: This rank's part of the model, if several ranks compute it; `spec` is that of the whole.
    shards: Shards | None = None

    @classmethod
    def of(
        cls,
        model: AnyCausalLM,
        spec: DecoderSpec,
        dtype: torch.dtype,
        fingerprint: str,
        made_from: Path | int,
        kv_scales: StoredKVScales | None = None,
        cpu_int4_compute: str = "auto",
        shards: Shards | None = None,
    ) -> LoadedModel:
        """Return the loaded model, with its present number of weight bytes."""
        return cls(
            model=model,
            spec=spec,
            dtype=dtype,
            fingerprint=fingerprint,
            num_weight_bytes=model.num_weight_bytes,
            made_from=made_from,
            kv_scales=kv_scales,
            cpu_int4_compute=cpu_int4_compute,
            shards=shards,
        )
