"""A router's two ports, as a process, before outsiders: no key, another's key, no token."""

from __future__ import annotations

import os
import re
import signal
import time
import urllib.error
import urllib.request
from functools import partial
from typing import TYPE_CHECKING

import grpc
import pytest

from baton.v1 import common_pb2, directory_pb2, directory_pb2_grpc
from baton_client import AuthenticationError, Baton, UnavailableError
from tests.fakes.processes.warm_process import WarmProcess
from tests.fakes.scripted.router_process import ROOT
from tests.fakes.security.doors import HEALTH, REFLECTION, bearer, knock, methods, service_of, token
from tests.fakes.security.keys import (
    CLUSTER_TOKEN,
    cluster_token_file,
    keys_on_disk,
    wrong_secret,
)
from tests.fakes.text import tiny_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.fakes.security.doors import Metadata
    from tests.fakes.security.keys import KeysOnDisk

REFUSED = grpc.StatusCode.UNAUTHENTICATED
SOON_S = 20.0


class Router:
    """The process, and all that it wrote."""

    def __init__(self, folder: Path) -> None:
        self.disk: KeysOnDisk = keys_on_disk(folder)
        self.log = folder / "router.log"
        model = tiny_tokenizer.save(tiny_tokenizer.byte_level(), folder / "tiny")
        flags = ["--model", str(model), "--port", "0", "--grpc-port", "0", "--log-level", "debug"]
        flags += ["--api-keys", str(self.disk.path)]
        flags += ["--cluster-token", str(cluster_token_file(folder))]
        with self.log.open("wb") as log:
            self.process = WarmProcess(
                ("services.router", *flags, "--log-format", "json"),
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}"},
                log=log,
            )
        self.wait_for('"listening"')
        found = re.search(r'"http_port": ?(\d+), ?"grpc_port": ?(\d+)', self.log.read_text())
        assert found is not None
        self.url, self.address = f"http://127.0.0.1:{found[1]}", f"127.0.0.1:{found[2]}"

    def wait_for(self, text: str, count: int = 1) -> None:
        """Until its log has `text` so often."""
        deadline_s = time.monotonic() + SOON_S
        while self.log.read_text().count(text) < count:
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline_s, self.log.read_text()
            time.sleep(0.02)

    def get(self, path: str, key: str = "") -> int:
        """The status of GET."""
        headers = {"authorization": f"Bearer {key}"} if key else {}
        request = urllib.request.Request(self.url + path, headers=headers)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=SOON_S) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Router]:
    router = Router(tmp_path_factory.mktemp("router"))
    yield router
    router.process.send_signal(signal.SIGTERM)
    assert router.process.wait(SOON_S) == 0


@pytest.fixture(scope="module")
def channel(router: Router) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(router.address) as channel:
        yield channel


def nobodies(router: Router) -> dict[str, Metadata]:
    """Who must get nothing anywhere."""
    key, other = router.disk.keys["a"], router.disk.keys["b"]
    return {
        "nothing": [],
        "no key": bearer("none"),
        "wrong secret": bearer(wrong_secret(key)),
        "another's id": bearer(key[:20] + other[20:]),
        "other scheme": [("authorization", f"Basic {key}")],
        "two keys": [*bearer(key), *bearer(other)],
        "long": bearer("bt-" + "a" * 4000),
        "key as token": token(key),
        "wrong token": token("x" * len(CLUSTER_TOKEN)),
        "half a token": token(CLUSTER_TOKEN[:-1]),
        "token as key": bearer(CLUSTER_TOKEN),
        "two tokens": [*token(CLUSTER_TOKEN), *token("x" * 40)],
    }


def test_every_method_is_closed_to_outsiders(router: Router, channel: grpc.Channel) -> None:
    everything = [*methods(), REFLECTION, "/baton.v1.Router/None", "/none.None/None", "/x", "//"]
    assert {service_of(method) for method in methods()} == {
        "Router", "Directory", "Decode", "Prefill", "Transfer", "Worker",
    }  # fmt: skip
    for method in everything:
        for name, metadata in nobodies(router).items():
            assert knock(channel, method, metadata) is REFUSED, (method, name)


#: Of the Router service, the calls that change workers.
OPERATORS = ("/baton.v1.Router/LoadLoraAdapter", "/baton.v1.Router/UnloadLoraAdapter")


def test_a_clients_key_opens_the_front_door_and_no_other(
    router: Router, channel: grpc.Channel
) -> None:
    key = router.disk.keys["a"]
    for method in methods():
        code = knock(channel, method, bearer(key))
        if service_of(method) == "Directory" or method in OPERATORS:
            assert code is REFUSED, method
        elif service_of(method) == "Router":
            assert code is not REFUSED, method
        else:
            assert code is grpc.StatusCode.UNIMPLEMENTED, method


def test_the_clusters_token_opens_the_directory_and_no_other(
    router: Router, channel: grpc.Channel
) -> None:
    for method in (*methods(), REFLECTION):
        code = knock(channel, method, token(CLUSTER_TOKEN))
        assert (code is REFUSED) == (service_of(method) != "Directory"), method


def test_health_checks_are_open(channel: grpc.Channel) -> None:
    assert knock(channel, HEALTH) is grpc.StatusCode.OK


def test_nobody_joins_as_a_worker_with_a_clients_key(router: Router, channel: grpc.Channel) -> None:
    directory = directory_pb2_grpc.DirectoryStub(channel)
    record = directory_pb2.WorkerRecord(
        worker=common_pb2.WorkerId(name="evil", incarnation="1"),
        role=common_pb2.ROLE_DECODE,
        address="127.0.0.1:1",
        model="tiny",
    )
    with pytest.raises(grpc.RpcError) as error:
        directory.Register(
            directory_pb2.RegisterRequest(record=record, lease_s=60),
            metadata=bearer(router.disk.keys["ops"]),
        )
    assert error.value.code() is REFUSED
    found = directory.ListWorkers(directory_pb2.ListWorkersRequest(), metadata=token(CLUSTER_TOKEN))
    assert list(found.workers) == []


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(AuthenticationError) as error:
        call()
    return str(error.value)


def test_the_sdk_says_what_is_wrong_and_not_with_what(
    router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = router.disk.keys["a"]
    for bad in ("", wrong_secret(key)):
        with Baton(router.address, api_key=bad) as baton:
            for call in (baton.models, partial(baton.generate, "x", max_tokens=1)):
                assert bad[20:] not in refusal(call) or not bad
    monkeypatch.setenv("BATON_API_KEY", key)
    # Nobody has told it yet how long a sequence may be: it got past the door.
    with Baton(router.address) as baton, pytest.raises(UnavailableError, match="no decode worker"):
        baton.models()


def test_a_key_counts_and_ends_without_a_restart(router: Router, channel: grpc.Channel) -> None:
    disk = router.disk
    num_reloads = router.log.read_text().count('"file_reloaded"')
    key = disk.add("late")
    router.wait_for('"file_reloaded"', num_reloads + 1)
    assert router.get("/v1/models", key) == 503
    assert knock(channel, "/baton.v1.Router/ListModels", bearer(key)) is not REFUSED
    disk.remove("late")
    router.wait_for('"file_reloaded"', num_reloads + 2)
    assert router.get("/v1/models", key) == 401
    assert knock(channel, "/baton.v1.Router/ListModels", bearer(key)) is REFUSED
    disk.path.write_text("[[[")
    router.wait_for('"file_not_reloaded"')
    assert router.get("/v1/models", disk.keys["a"]) == 503
    disk.write()


def test_no_key_and_no_token_is_in_the_log(router: Router, channel: grpc.Channel) -> None:
    """After everything that the tests above, and this one, have sent."""
    key = router.disk.keys["a"]
    for metadata in (bearer(key), bearer(wrong_secret(key)), token(CLUSTER_TOKEN)):
        for method in methods():
            knock(channel, method, metadata)
    router.get("/v1/models", key)
    router.get(f"/none?key={key[:3]}", key)
    log = router.log.read_text()
    assert '"listening"' in log
    for name, each in router.disk.keys.items():
        assert each[20:] not in log, name
    assert CLUSTER_TOKEN not in log
