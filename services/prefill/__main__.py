"""Starts the prefill worker: reads its settings and wires its parts."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from baton.v1 import prefill_pb2_grpc
from services.prefill.config import PrefillConfig
from services.prefill.metrics import PoolMetrics, PrefillMetrics
from services.prefill.pool import PoolCalls
from services.prefill.reader_servicer import ReaderPrefillServicer
from services.prefill.servicer import PrefillServicer
from services.prefill.watch import PrefillWatch
from shared.ending import end_process
from shared.identity import Role
from shared.text.token_table import read_token_table
from shared.worker.process import main

if TYPE_CHECKING:
    import grpc

    from shared.rpc.service_switch import ServiceSet
    from shared.worker.lives.reading import Reader
    from shared.worker.parts import WorkerParts


def add_prefill(config: PrefillConfig, parts: WorkerParts, services: ServiceSet) -> None:
    """Serve `baton.v1.Prefill`."""
    servicer = PrefillServicer(
        recipients=parts.recipients,
        layout=parts.layout,
        engine=parts.engine,
        gate=parts.gate,
        reuse=parts.reuse,
        states=parts.hidden,
        grammars=parts.grammars,
        adapters=parts.adapters,
        timeout_s=config.worker.transfer_timeout_s,
        is_healthy=lambda: not parts.gate.unhealthy,
        watch=PrefillWatch(PrefillMetrics(parts.metrics), parts.tracer),
        pool=PoolCalls(
            parts.pooler,
            parts.gate,
            PoolMetrics(parts.metrics),
            model=config.worker.model.name,
            adapters=parts.adapters,
        ),
    )
    prefill_pb2_grpc.add_PrefillServicer_to_server(servicer, services.server)


def add_reader(reader: Reader, server: grpc.aio.Server) -> None:
    """Serve `baton.v1.Prefill` of a model that reads whole texts."""
    pool = PoolCalls(
        reader.pooler, reader.gate, PoolMetrics(reader.metrics), model=reader.config.model.name
    )
    prefill_pb2_grpc.add_PrefillServicer_to_server(ReaderPrefillServicer(pool), server)


if __name__ == "__main__":
    end_process(
        main(
            PrefillConfig,
            Role.PREFILL,
            argv=sys.argv[1:],
            service="baton.v1.Prefill",
            add_service=add_prefill,
            add_reader=add_reader,
            read_token_table=read_token_table,
        )
    )
