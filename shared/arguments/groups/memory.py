"""vLLM's group CacheConfig."""

from __future__ import annotations

from shared.arguments.base import Inert, Refused, Same, Spelled, renamed, switch, value, words
from shared.arguments.values import either

NO_MAMBA = "states have the dtype that the model's layers give them"
SPACING = "a state's checkpoints are kept at prompt ends, shared junctions and a stated interval"

MEMORY = (
    value("--block-size", None, Same()),
    value(
        "--gpu-memory-utilization",
        "0.92",
        Same("of the free memory; on a CPU: --cpu-memory-utilization"),
    ),
    value("--device-memory-utilization", "0.92", renamed("--gpu-memory-utilization")),
    value("--kv-cache-memory-bytes", None, Same()),
    value("--swap-space", "4", Inert("a preempted sequence is computed again, or offloaded")),
    value(
        "--kv-cache-dtype",
        "auto",
        Spelled("--kv-cache-dtype", either("--kv-cache-dtype", {"half": "float16"})),
    ),
    value("--num-gpu-blocks-override", None, renamed("--num-blocks")),
    switch("--enable-prefix-caching", Same(), default=None),
    value(
        "--prefix-caching-hash-algo",
        "sha256",
        Inert("all workers hash with SHA-256 over an encoding of their own"),
    ),
    value("--prefix-cache-retention-interval", "0", Inert(SPACING)),
    words("--kv-cache-dtype-skip-layers", "[]", Refused("all layers keep one dtype")),
    switch("--calculate-kv-scales", Inert("scales are a token's own, or the checkpoint's")),
    switch("--kv-sharing-fast-prefill", Inert("layers that share KV are found by themselves")),
    switch("--swa-bounded-replay", Inert(SPACING), default=True),
    value("--mamba-cache-dtype", "auto", Refused(NO_MAMBA)),
    value("--mamba-ssm-cache-dtype", "auto", Refused(NO_MAMBA)),
    value("--mamba-block-size", None, Inert(SPACING)),
    value("--prefix-match-unit", None, Inert("a prefix matches by --block-size")),
    value("--mamba-cache-mode", "none", Inert(SPACING)),
    switch("--enable-mamba-shared-prefix-checkpoint", Inert(SPACING)),
    value("--replayssm-buffer-len", "16", Inert("a state takes every token once")),
    switch("--use-replayssm", Inert("a state takes every token once")),
    value("--kv-offloading-size", None, renamed("--kv-offload-host-gib", "of each worker")),
    value(
        "--kv-offloading-backend",
        "native",
        Refused("KV is offloaded by Baton itself: --kv-offload-host-gib, --kv-offload-disk-dir"),
    ),
)
