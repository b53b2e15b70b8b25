"""vLLM's group ParallelConfig."""

from __future__ import annotations

from shared.arguments.base import (
    Inert,
    Refused,
    Same,
    Spelled,
    json_object,
    renamed,
    switch,
    value,
    words,
)
from shared.arguments.values import either

NO_RANKS = (
    "a model is divided among processes by --tensor-parallel-size and --pipeline-parallel-size "
    "alone"
)
NO_EXPERTS = "experts are divided by --enable-expert-parallel alone, and stay where they are"
NO_RANK_OF_DATA = (
    "workers are no ranks: each joins by itself, with --directory or --redis-url, and routers "
    "balance between them"
)
NO_DBO = "Baton does not split a batch to overlap communication: there is none inside of a worker"
NO_NCCL = "workers do not use NCCL"
NO_NUMA = "use --cpu-threads-bind, or start the worker under numactl"

PARALLEL = (
    value(
        "--distributed-executor-backend",
        None,
        Spelled(
            "--distributed-executor-backend",
            either(
                "--distributed-executor-backend",
                {"uni": "mp", "external_launcher": "external"},
            ),
            "`uni` is `mp`, `external_launcher` is `external`; there is no Ray",
        ),
    ),
    value("--pipeline-parallel-size", "1", Same(), short="-pp"),
    value("--master-addr", "127.0.0.1", Same()),
    value("--master-port", "29501", Same()),
    value("--nnodes", "1", Same(), short="-n"),
    value("--node-rank", "0", Same(), short="-r"),
    switch("--headless", Inert("a host with a --node-rank over 0 has ranks alone")),
    value("--distributed-timeout-seconds", None, Same()),
    value("--cpu-distributed-timeout-seconds", None, renamed("--distributed-timeout-seconds")),
    switch("--numa-bind", Refused(NO_NUMA)),
    words("--numa-bind-nodes", None, Refused(NO_NUMA)),
    words("--numa-bind-cpus", None, Refused(NO_NUMA)),
    value("--device-ids", None, Refused("use --device cuda:N, one for each worker")),
    value("--tensor-parallel-size", "1", Same(), short="-tp"),
    value("--decode-context-parallel-size", "1", Refused(NO_RANKS), short="-dcp"),
    value("--dcp-comm-backend", None, Inert(NO_RANKS)),
    switch("--dcp-q-replicate", Inert(NO_RANKS), default=None),
    value("--dcp-kv-cache-interleave-size", "1", Inert(NO_RANKS)),
    value("--cp-kv-cache-interleave-size", None, Inert(NO_RANKS)),
    value("--prefill-context-parallel-size", "1", Refused(NO_RANKS), short="-pcp"),
    value(
        "--data-parallel-size",
        "1",
        renamed("--decode", "decode workers, which compute prompts, too, without --prefill"),
        short="-dp",
    ),
    value("--data-parallel-rank", None, Refused(NO_RANK_OF_DATA), short="-dpn"),
    value("--data-parallel-start-rank", None, Refused(NO_RANK_OF_DATA), short="-dpr"),
    value("--data-parallel-size-local", None, Refused(NO_RANK_OF_DATA), short="-dpl"),
    value("--data-parallel-address", None, Refused(NO_RANK_OF_DATA), short="-dpa"),
    value("--data-parallel-rpc-port", None, Refused(NO_RANK_OF_DATA), short="-dpp"),
    value("--data-parallel-backend", "mp", Refused("there is no Ray"), short="-dpb"),
    switch("--data-parallel-hybrid-lb", Inert("routers always balance"), short="-dph"),
    switch("--data-parallel-external-lb", Refused(NO_RANK_OF_DATA), short="-dpe"),
    switch("--data-parallel-multi-port-external-lb", Refused(NO_RANK_OF_DATA), short="-dpm"),
    switch("--enable-hc-sp", Refused(NO_RANKS)),
    switch(
        "--enable-expert-parallel",
        Same("the ranks that divide a model divide its experts"),
        short="-ep",
    ),
    switch("--enable-batch-sharded-sampling", Refused(NO_RANKS), default=None),
    switch("--enable-ep-weight-filter", Inert(NO_EXPERTS)),
    value("--all2all-backend", "allgather_reducescatter", Inert(NO_EXPERTS)),
    switch("--enable-dbo", Refused(NO_DBO)),
    switch("--enable-shm-tensor-arena", Inert(NO_RANKS)),
    value("--ubatch-size", "0", Refused(NO_DBO)),
    switch("--enable-elastic-ep", Refused(NO_EXPERTS)),
    value("--elastic-ep-max-dp-size", None, Refused(NO_EXPERTS)),
    value("--dbo-decode-token-threshold", "32", Inert(NO_DBO)),
    value("--dp-sync-interval", "16", Inert(NO_RANK_OF_DATA)),
    value("--dbo-prefill-token-threshold", "512", Inert(NO_DBO)),
    switch("--disable-nccl-for-dp-synchronization", Inert(NO_NCCL), default=None),
    switch("--enable-eplb", Refused(NO_EXPERTS)),
    json_object("--eplb-config", Inert(NO_EXPERTS)),
    value("--expert-placement-strategy", "linear", Inert(NO_EXPERTS)),
    value("--max-parallel-loading-workers", None, Inert("every worker loads its own weights")),
    switch("--ray-workers-use-nsight", Refused("there is no Ray")),
    switch("--disable-custom-all-reduce", Inert(NO_NCCL)),
    value("--worker-cls", "auto", Refused("workers are Baton's own")),
    value("--worker-extension-cls", "", Refused("workers take no code of another package here")),
    switch("--enable-fault-tolerance", Inert("lost workers are always replaced by others")),
    json_object("--fault-tolerance-config", Inert("see --stream-stall-s and --transfer-stall-s")),
    value("--api-process-count", "1", renamed("--routers")),
    value("--api-process-rank", "0", Inert("routers have no ranks")),
)
