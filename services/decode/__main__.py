"""Starts the decode worker: reads its settings and wires its parts."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

from baton.v1 import common_pb2, decode_pb2_grpc
from services.decode.answer import DecodeCall
from services.decode.config import DecodeConfig
from services.decode.decider import Decider
from services.decode.hand_off import HandOff
from services.decode.hidden import HiddenPolicy, states_counter
from services.decode.metrics import DecodeMetrics
from services.decode.servicer import DecodeServicer
from shared.ending import end_process
from shared.identity import Role
from shared.rpc.wire import worker_id_to_wire
from shared.text.token_table import read_token_table
from shared.worker.peers.breaker import PeerBreaker
from shared.worker.process import main

if TYPE_CHECKING:
    from shared.rpc.service_switch import ServiceSet
    from shared.worker.parts import WorkerParts


def add_decode(config: DecodeConfig, parts: WorkerParts, services: ServiceSet) -> None:
    """Serve `baton.v1.Decode`."""
    hand_off = HandOff(
        peers=parts.peers,
        channels=parts.channels,
        own_source=lambda num_blocks: common_pb2.PrefixSource(
            worker=worker_id_to_wire(parts.worker),
            address=config.worker.address(services.port),
            num_blocks=num_blocks,
        ),
        breaker=PeerBreaker(
            threshold=config.breaker_failures, observe=parts.breakers.observe("prefill")
        ),
        metrics=parts.metrics,
        timeout_s=config.worker.transfer_timeout_s,
        stall_s=config.transfer_stall_s,
        max_attempts=config.max_prefill_attempts,
        hidden=_hidden_policy(config, parts),
    )
    answer = partial(
        DecodeCall,
        engine=parts.engine,
        hand_off=hand_off,
        reuse=parts.reuse,
        grammars=parts.grammars,
        adapters=parts.adapters,
        decider=Decider(local_prefill_threshold=config.local_prefill_threshold),
        layout=parts.layout,
        max_model_len=parts.max_model_len,
    )
    servicer = DecodeServicer(
        answer=answer,
        gate=parts.gate,
        metrics=DecodeMetrics(parts.metrics),
        tracer=parts.tracer,
    )
    decode_pb2_grpc.add_DecodeServicer_to_server(servicer, services.server)


def _hidden_policy(config: DecodeConfig, parts: WorkerParts) -> HiddenPolicy | None:
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
        patience_s=config.transfer_stall_s,
    )


if __name__ == "__main__":
    end_process(
        main(
            DecodeConfig,
            Role.DECODE,
            argv=sys.argv[1:],
            service="baton.v1.Decode",
            add_service=add_decode,
            read_token_table=read_token_table,
        )
    )
