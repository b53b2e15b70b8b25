"""Where the answers come from: an engine in this process, or prefill and decode workers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import grpc

from baton.v1 import common_pb2, router_pb2, router_pb2_grpc
from benchmarks.structured.conformance import Outcome
from cli.cluster import Cluster, ClusterSpec
from cli.start.ports import free_port
from shared.engine.sequence.events import Failed, NewTokens
from shared.engine.sequence.request import EngineRequest
from shared.request.answer import FinishReason
from shared.request.grammar.wire import grammar_to_wire

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from benchmarks.structured.conformance import Asks, Case
    from shared.engine.llm import LLM

TIMEOUT_S = 300.0
CONCURRENCY = 16


def ask_engine(llm: LLM) -> Asks:
    """All cases at once; the engine batches what it has room for."""

    def ask(cases: Sequence[Case]) -> list[Outcome]:
        tokens: dict[str, list[int]] = {f"case-{case.seed}": [] for case in cases}
        ends: dict[str, FinishReason | None] = {}
        for name, case in zip(tokens, cases, strict=True):
            request = EngineRequest(
                request_id=name, prompt_token_ids=case.prompt, sampling=case.sampling
            )
            llm.engine.add(llm.grammars.ready_now(request))
        while llm.engine.has_work() or llm.engine.wait_for_news():
            for event in llm.engine.step():
                if isinstance(event, Failed):
                    raise event.error
                if isinstance(event, NewTokens):
                    tokens[event.request_id] += event.token_ids
                    ends[event.request_id] = event.finish_reason
        return [
            Outcome(tuple(ids), ends[name] is FinishReason.STOP) for name, ids in tokens.items()
        ]

    return ask


def ask_router(stub: router_pb2_grpc.RouterStub) -> Asks:
    """Some cases at a time, over gRPC."""

    def one(case: Case) -> Outcome:
        sampling = case.sampling
        assert sampling.grammar is not None
        request = router_pb2.GenerateRequest(
            prompt=router_pb2.Prompt(tokens=common_pb2.TokenIds(ids=case.prompt)),
            params=router_pb2.GenerationParams(
                max_tokens=sampling.max_tokens,
                temperature=sampling.temperature,
                seed=sampling.seed,
                logit_bias=sampling.logit_bias,
                grammar=grammar_to_wire(sampling.grammar),
            ),
        )
        pieces = list(stub.Generate(request, timeout=TIMEOUT_S))
        return Outcome(
            tuple(token for piece in pieces for token in piece.token_ids),
            pieces[-1].finish_reason == common_pb2.FINISH_REASON_STOP,
        )

    def ask(cases: Sequence[Case]) -> list[Outcome]:
        with ThreadPoolExecutor(CONCURRENCY) as threads:
            return list(threads.map(one, cases))

    return ask


@contextmanager
def running_cluster(model: Path, folder: Path, *flags: str) -> Iterator[router_pb2_grpc.RouterStub]:
    """A router, a prefill and a decode process; `flags` are the workers'. Logs are in `folder`."""
    spec = ClusterSpec(
        model=model,
        served_model_name="bench",
        log_folder=folder,
        port=free_port(),
        grpc_port=free_port(),
        worker_flags=("--num-blocks", "2048", *flags),
    )
    with Cluster(spec) as cluster:
        cluster.start()
        cluster.wait_ready(lambda _: None)
        with grpc.insecure_channel(spec.directory) as channel:
            yield router_pb2_grpc.RouterStub(channel)
