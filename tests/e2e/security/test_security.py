"""Real workers and a real router before outsiders, and one tenant before another."""

from __future__ import annotations

import random
import socket
import statistics
import time
from typing import TYPE_CHECKING

import grpc
import numpy as np
import pytest

from tests.e2e.asking import prompt_of
from tests.e2e.conftest import BLOCK_SIZE
from tests.e2e.guarded import info_of
from tests.fakes.security.doors import HEALTH, REFLECTION, bearer, knock, methods, token
from tests.fakes.security.keys import CLUSTER_TOKEN

if TYPE_CHECKING:
    from tests.e2e.guarded import Guarded

REFUSED = grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("name", ["prefill-0", "decode-0"])
def test_every_method_of_a_worker_is_closed_to_outsiders(guarded: Guarded, name: str) -> None:
    outsiders = {
        "nobody": [],
        "a client": bearer(guarded.disk.keys["ops"]),
        "a client's key as token": token(guarded.disk.keys["ops"]),
        "wrong token": token("x" * len(CLUSTER_TOKEN)),
        "two tokens": [*token(CLUSTER_TOKEN), *token("x" * 40)],
        "token as key": bearer(CLUSTER_TOKEN),
    }
    with grpc.insecure_channel(guarded.cluster.addresses[name]) as channel:
        for method in (*methods(), REFLECTION, "/none.None/None"):
            for who, metadata in outsiders.items():
                assert knock(channel, method, metadata) is REFUSED, (method, who)
        assert knock(channel, HEALTH) is grpc.StatusCode.OK
        for method in ("/baton.v1.Worker/GetInfo", "/baton.v1.Worker/GetLoad"):
            assert knock(channel, method, token(CLUSTER_TOKEN)) is grpc.StatusCode.OK, method
    guarded.cluster.wait_idle()


def test_two_tenants_with_the_same_prompt_share_no_block(guarded: Guarded) -> None:
    prompt = prompt_of(6 * BLOCK_SIZE + 3, seed=61)
    assert guarded.ask("ops", prompt)[0] == 0
    assert guarded.ask("ops", prompt)[0] == 6 * BLOCK_SIZE
    for salt in ({}, {"cache_salt": "x"}, {"cache_salt": "ops"}):
        assert guarded.ask("ops2", prompt, **salt)[0] == 0, salt
    # The same tenant divides its own further.
    assert guarded.ask("ops", prompt, cache_salt="x")[0] == 0
    fresh = prompt_of(6 * BLOCK_SIZE, seed=62)
    guarded.ask("ops", fresh)
    # The index is told a moment later.
    deadline_s = time.monotonic() + 20
    while not guarded.held("ops", fresh):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    assert guarded.held("ops2", fresh) == 0


def test_a_tenant_cannot_tell_by_time_what_another_has_asked(guarded: Guarded) -> None:
    """Permutation test on the rank sums of TTFTs, in an order of chance: no clock of this machine
    has to be fast, both samples only have to be of one distribution. Its positive control shows
    that the same test finds a prefix which the tenant did ask for.
    """
    rng = random.Random(5)
    num_each = 14
    trials = [True, False] * num_each
    rng.shuffle(trials)
    spied: dict[bool, list[float]] = {True: [], False: []}
    own: dict[bool, list[float]] = {True: [], False: []}
    for number, asked_before in enumerate(trials):
        prompt = prompt_of(40 * BLOCK_SIZE, seed=1000 + number)
        # In either case somebody has just been served, so that only the prefix differs.
        unrelated = prompt_of(40 * BLOCK_SIZE, seed=2000 + number)
        guarded.ask("a", prompt if asked_before else unrelated)
        num_cached, ttft_s = guarded.ask("b", prompt)
        assert num_cached == 0
        spied[asked_before].append(ttft_s)
        # b has it now; another prompt was not asked by anybody.
        num_cached, ttft_s = guarded.ask("b", prompt)
        assert num_cached > 0
        own[True].append(ttft_s)
        own[False].append(spied[asked_before][-1])
    assert probability_of_chance(spied[True], spied[False], rng) > 2e-4
    assert probability_of_chance(own[True], own[False], rng) < 1e-3


def probability_of_chance(ones: list[float], others: list[float], rng: random.Random) -> float:
    """How often a random split of all values has rank sums as far apart, on either side."""
    values = np.argsort(np.argsort([*ones, *others])).astype(float)
    expected = statistics.fmean(values) * len(ones)
    observed = abs(values[: len(ones)].sum() - expected)
    generator = np.random.default_rng(rng.getrandbits(32))
    num_as_far = sum(
        abs(generator.permutation(values)[: len(ones)].sum() - expected) >= observed
        for _ in range(20_000)
    )
    return (num_as_far + 1) / 20_001


def test_text_and_random_bytes_get_nothing_from_any_port(guarded: Guarded) -> None:
    """Plain TCP on the gRPC ports and the connectors' own: nothing breaks, nothing is held."""
    cluster = guarded.cluster
    ports = [int(address.rpartition(":")[2]) for address in cluster.addresses.values()]
    offers = [info_of(guarded, name).peer.offers[0] for name in cluster.addresses]
    ports += [int(offer.address.rpartition(":")[2]) for offer in offers]
    for port in (*ports, cluster.grpc_port):
        for data in (b"GET / HTTP/1.1\r\n\r\n", random.Random(3).randbytes(5000), b"\x00" * 64):
            with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
                connection.sendall(data)
    cluster.wait_idle()
    assert guarded.ask("a", prompt_of(40, seed=63))[0] == 0


def test_no_secret_is_in_any_log(guarded: Guarded) -> None:
    prompt = prompt_of(20, seed=65)
    guarded.ask("a", prompt)
    for process in guarded.cluster.processes:
        log = process.log.read_text(errors="replace")
        assert log
        for secret in (*(key[20:] for key in guarded.disk.keys.values()), CLUSTER_TOKEN):
            assert secret not in log, process.name
