"""What the doctor says of a cluster in which workers of one role are all that there is."""

from __future__ import annotations

import pytest

from baton.v1 import common_pb2, worker_pb2
from cli.doctor.cluster import _pairs
from cli.doctor.finding import Level
from cli.security.access import NOTHING

PREFILL, DECODE = common_pb2.ROLE_PREFILL, common_pb2.ROLE_DECODE


@pytest.mark.parametrize(
    ("role", "serves", "level", "words"),
    [
        (PREFILL, [PREFILL, DECODE], Level.WARN, "no worker prefers decode"),
        (PREFILL, [PREFILL], Level.FAIL, "no decode worker has joined"),
        (PREFILL, [], Level.FAIL, "no decode worker has joined"),
        (DECODE, [PREFILL, DECODE], Level.WARN, "no prefill worker has joined"),
    ],
)
def test_a_role_that_no_worker_prefers_is_a_fault_only_if_none_serves_it(
    role: int, serves: list[common_pb2.Role.ValueType], level: Level, words: str
) -> None:
    infos = {PREFILL: [], DECODE: []} | {role: [worker_pb2.GetInfoResponse(serves=serves)]}
    [finding] = _pairs(infos, {}, NOTHING)
    assert (finding.level, finding.text) == (level, words)
