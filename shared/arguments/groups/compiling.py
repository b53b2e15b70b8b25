"""vLLM's groups CompilationConfig, KernelConfig, AttentionConfig and MambaConfig."""

from __future__ import annotations

from shared.arguments.base import (
    Inert,
    Refused,
    Spelled,
    json_object,
    renamed,
    switch,
    value,
    words,
)
from shared.arguments.values import backend, graph_sizes_up_to, only_backend

COMPILED = "Baton's kernels are compiled ahead of time; there is no compilation to set"
CHOSEN = "each kernel is chosen by device, dtype and shape"

COMPILING = (
    value(
        "--attention-backend",
        None,
        Spelled("--attention-backend", backend, "TRITON_ATTN is triton, CPU_ATTN native"),
    ),
    json_object("--attention-config", Spelled("--attention-backend", only_backend), short="-ac"),
    words("--cudagraph-capture-sizes", None, renamed("--cuda-graph-sizes")),
    value("--max-cudagraph-capture-size", None, Spelled("--cuda-graph-sizes", graph_sizes_up_to)),
    json_object("--compilation-config", Inert(COMPILED), short="-cc"),
    value("--optimization-level", "2", Inert(COMPILED), short="-O"),
    json_object("--ir-op-priority", Inert(CHOSEN)),
    switch("--enable-flashinfer-autotune", Inert(CHOSEN), default=None),
    value("--moe-backend", "auto", Inert(CHOSEN)),
    value("--linear-backend", "auto", Inert(CHOSEN)),
    value("--sparse-indexer-topk-backend", "auto", Inert(CHOSEN)),
    value("--gdn-prefill-backend", None, Inert(CHOSEN)),
    value("--kda-prefill-backend", None, Inert(CHOSEN)),
    value("--kda-decode-backend", None, Inert(CHOSEN)),
    json_object("--kernel-config", Inert(CHOSEN)),
    value("--mamba-backend", "triton", Inert(CHOSEN)),
    value("--mamba-ssu-algorithm", None, Inert(CHOSEN)),
    json_object("--mamba-config", Inert(CHOSEN)),
    switch(
        "--enable-mamba-cache-stochastic-rounding",
        Refused("a state's numbers are rounded to the nearest"),
    ),
    value("--mamba-cache-philox-rounds", "0", Inert("nothing is rounded at random")),
)
