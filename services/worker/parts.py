"""Adds the services of a worker to its server."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from baton.v1 import common_pb2, decode_pb2_grpc, prefill_pb2_grpc
from services.decode.answer import DecodeCall
from services.decode.decider import Decider
from services.decode.hand_off import HandOff
from services.decode.hidden import HiddenPolicy, states_counter
from services.decode.layer_choice import LayerMode
from services.decode.metrics import DecodeMetrics
from services.decode.servicer import DecodeServicer
from services.prefill.metrics import PoolMetrics, PrefillMetrics
from services.prefill.pool import PoolCalls
from services.prefill.reader_servicer import ReaderPrefillServicer
from services.prefill.servicer import PrefillServicer
from services.prefill.watch import PrefillWatch
from shared.identity import Role
from shared.rpc.wire import worker_id_to_wire
from shared.worker.peers.breaker import PeerBreaker

if TYPE_CHECKING:
    import grpc

    from services.worker.config import WorkerProgramConfig
    from shared.rpc.service_switch import ServiceSet
    from shared.worker.lives.reading import Reader
    from shared.worker.parts import WorkerParts


def add_services(config: WorkerProgramConfig, parts: WorkerParts, services: ServiceSet) -> None:
    """Add the services of all roles that the worker serves."""
    if Role.PREFILL in parts.roles.served:
        _add_prefill(config, parts, services)
    if Role.DECODE in parts.roles.served:
        _add_decode(config, parts, services)


def add_reader(reader: Reader, server: grpc.aio.Server) -> None:
    """Serve `baton.v1.Prefill` of a model that reads whole texts."""
    pool = PoolCalls(
        reader.pooler, reader.gate, PoolMetrics(reader.metrics), model=reader.config.model.name
    )
    prefill_pb2_grpc.add_PrefillServicer_to_server(ReaderPrefillServicer(pool), server)


def _add_prefill(config: WorkerProgramConfig, parts: WorkerParts, services: ServiceSet) -> None:
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
        watch=PrefillWatch(PrefillMetrics(parts.metrics, parts.requests), parts.tracer),
        pool=PoolCalls(
            parts.pooler,
            parts.gate,
            PoolMetrics(parts.metrics),
            model=config.worker.model.name,
            adapters=parts.adapters,
        ),
    )
    prefill_pb2_grpc.add_PrefillServicer_to_server(servicer, services.server)


def _add_decode(config: WorkerProgramConfig, parts: WorkerParts, services: ServiceSet) -> None:
    """Serve `baton.v1.Decode`."""
    settings = config.decode
    hand_off = HandOff(
        peers=parts.peers,
        channels=parts.channels,
        own_source=lambda num_blocks: common_pb2.PrefixSource(
            worker=worker_id_to_wire(parts.worker),
            address=config.worker.address(services.port),
            num_blocks=num_blocks,
        ),
        breaker=PeerBreaker(
            threshold=settings.breaker_failures, observe=parts.breakers.observe("prefill")
        ),
        metrics=parts.metrics,
        timeout_s=config.worker.transfer_timeout_s,
        stall_s=settings.transfer_stall_s,
        max_attempts=settings.max_prefill_attempts,
        layers=LayerMode(settings.transfer_by_layers),
        hidden=_hidden_policy(config, parts),
    )
    answer = partial(
        DecodeCall,
        worker=parts.worker,
        engine=parts.engine,
        hand_off=hand_off,
        reuse=parts.reuse,
        grammars=parts.grammars,
        adapters=parts.adapters,
        decider=Decider(local_prefill_threshold=settings.local_prefill_threshold),
        layout=parts.layout,
        max_model_len=parts.max_model_len,
    )
    servicer = DecodeServicer(
        answer=answer,
        gate=parts.gate,
        metrics=DecodeMetrics(parts.metrics, parts.requests),
        tracer=parts.tracer,
    )
    decode_pb2_grpc.add_DecodeServicer_to_server(servicer, services.server)


def _hidden_policy(config: WorkerProgramConfig, parts: WorkerParts) -> HiddenPolicy | None:
    """Return the policy; None if this worker has no draft head that reads hidden states."""
    outcomes = states_counter(parts.metrics)
    speculation = config.worker.engine.speculation
    if parts.hidden.wanted is None or speculation is None:
        return None
    return HiddenPolicy(
        parts.hidden.wanted,
        speculation,
        outcomes,
        tokens_per_step=config.worker.engine.max_num_batched_tokens,
        patience_s=config.decode.transfer_stall_s,
    )
