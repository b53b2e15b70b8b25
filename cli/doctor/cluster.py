"""Checks of a running cluster: its workers, their state, and transfers between them."""

from __future__ import annotations

import urllib.request
from contextlib import closing
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from itertools import chain
from typing import TYPE_CHECKING, Any

import grpc

from baton.v1 import common_pb2, transfer_pb2, transfer_pb2_grpc, worker_pb2, worker_pb2_grpc
from cli.doctor.finding import fail, ok, warn
from cli.doctor.weights import check_weights
from cli.security.access import NOTHING, open_channel
from cli.start.readiness import ReadinessProbe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from baton.v1 import directory_pb2
    from cli.doctor.finding import Finding
    from cli.security.access import Access

TIMEOUT_S = 3.0
#: The router's clock is known in whole seconds.
MAX_CLOCK_OFF_S = 3.0
ROLES = {common_pb2.ROLE_PREFILL: "prefill", common_pb2.ROLE_DECODE: "decode"}


def check_cluster(
    *, url: str, directory: str, access: Access = NOTHING
) -> Iterator[Finding] | None:
    """Return the findings, or None if no router answers there."""
    probe = ReadinessProbe(
        url=url, directory=directory, secure=access.secure, metadata=access.metadata
    )
    with closing(probe):
        missing = probe.missing()
        workers = list(probe.workers())
        refused = list(probe.refused())
    if missing is None and not workers:
        return None
    return chain(_check(url, directory, missing, workers, access), map(_refused, refused))


def _check(
    url: str,
    directory: str,
    missing: object,
    workers: list[directory_pb2.WorkerStatus],
    access: Access,
) -> Iterator[Finding]:
    if missing is None:
        yield fail("router", f"{url} does not answer, {directory} does", "is --port right?")
    elif missing:
        yield fail("router", f"{url}: {missing}", "look into the router's log")
    else:
        yield ok("router", f"{url} serves")
        yield from _clock(url, access)
    #: By the role that routers prefer it for.
    infos: dict[int, list[worker_pb2.GetInfoResponse]] = {role: [] for role in ROLES}
    addresses: dict[str, str] = {}
    for worker in workers:
        name, address = worker.record.worker.name, worker.record.address
        try:
            info, load = _ask(address, access)
        except grpc.RpcError as error:
            yield fail(name, f"{address} does not answer: {_details(error)}", "look into its log")
            continue
        infos.setdefault(load.preference or info.role, []).append(info)
        addresses[name] = address
        yield _worker(name, address, info, load)
    yield from check_weights([worker.record for worker in workers])
    yield from _pairs(infos, addresses, access)


def _refused(worker: directory_pb2.RefusedWorker) -> Finding:
    """Return the finding of a refused worker. It is not called: it would get the token."""
    text = f"refused, at {worker.address or 'no address'}: {worker.reason}"
    return fail(
        worker.worker.name, text, "give all the same --cluster-token; else see who writes to Redis"
    )


def _clock(url: str, access: Access) -> Iterator[Finding]:
    """Compare clocks: certificates, expiring keys and traces use them; a second is tolerated."""
    context = None if access.secure is None else access.secure.context()
    try:
        with urllib.request.urlopen(f"{url}/live", timeout=TIMEOUT_S, context=context) as answer:
            theirs = parsedate_to_datetime(answer.headers["date"])
    except (OSError, TypeError, ValueError):
        return
    off_s = abs((datetime.now(UTC) - theirs).total_seconds())
    text = f"{off_s:.0f} s from the router's"
    if off_s > MAX_CLOCK_OFF_S:
        yield warn("clock", text, "let both follow a time server")
    else:
        yield ok("clock", "agrees with the router's")


def _ask(
    address: str, access: Access
) -> tuple[worker_pb2.GetInfoResponse, worker_pb2.GetLoadResponse]:
    with open_channel(address, access.secure) as channel:
        stub = worker_pb2_grpc.WorkerStub(channel)
        info = stub.GetInfo(
            worker_pb2.GetInfoRequest(), timeout=TIMEOUT_S, metadata=access.metadata
        )
        request = worker_pb2.GetLoadRequest()
        return info, stub.GetLoad(request, timeout=TIMEOUT_S, metadata=access.metadata)


def _worker(
    name: str,
    address: str,
    info: worker_pb2.GetInfoResponse,
    load: worker_pb2.GetLoadResponse,
) -> Finding:
    role = ROLES.get(load.preference or info.role, "?")
    offers = " ".join(offer.connector for offer in info.peer.offers) or "none"
    text = (
        f"{role} at {address}: {info.model}, {load.num_free_blocks} of {load.num_blocks} blocks "
        f"free, {load.num_running} running, {load.num_waiting} waiting; receives over {offers}"
    )
    if load.num_waiting > load.num_running + 8:
        return warn(name, text, f"it cannot keep up: add {role} workers")
    return ok(name, text)


def _pairs(
    infos: dict[int, list[worker_pb2.GetInfoResponse]], addresses: dict[str, str], access: Access
) -> Iterator[Finding]:
    """Check which workers can hand over to which, by the workers' own handshake."""
    prefills, decodes = infos[common_pb2.ROLE_PREFILL], infos[common_pb2.ROLE_DECODE]
    if not decodes and any(common_pb2.ROLE_DECODE in info.serves for info in prefills):
        text = "no worker prefers decode"
        yield warn("hand-off", text, "prefill workers write the answers themselves: baton prefer")
    elif not decodes:
        yield fail("hand-off", "no decode worker has joined", "start one: baton serve decode")
    if not prefills:
        yield warn(
            "hand-off", "no prefill worker has joined", "decode workers compute prompts themselves"
        )
    for prefill in prefills:
        for decode in decodes:
            yield _pair(prefill, decode, addresses[prefill.peer.worker.name], access)


def _pair(
    prefill: worker_pb2.GetInfoResponse,
    decode: worker_pb2.GetInfoResponse,
    address: str,
    access: Access,
) -> Finding:
    subject = f"{prefill.peer.worker.name} → {decode.peer.worker.name}"
    request = transfer_pb2.HandshakeRequest(peer=decode.peer)
    try:
        with open_channel(address, access.secure) as channel:
            stub = transfer_pb2_grpc.TransferStub(channel)
            answer = stub.Handshake(request, timeout=TIMEOUT_S, metadata=access.metadata)
    except grpc.RpcError as error:
        return fail(
            subject, _details(error), "start both with the same model, dtype and block size"
        )
    if not answer.reachable:
        return fail(
            subject, "no connector reaches from one to the other", "give both --connectors zmq"
        )
    others = ", ".join(answer.reachable[1:])
    return ok(subject, f"over {answer.reachable[0]}{f' (then {others})' if others else ''}")


def _details(error: Any) -> str:
    # The error of a stub is also the call; the types have only one of them.
    return f"{error.code().name}: {error.details()}"
