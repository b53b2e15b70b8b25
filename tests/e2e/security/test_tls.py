"""A whole cluster that trusts nobody: TLS, CURVE and rediss, as real processes."""

from __future__ import annotations

import ssl
import threading
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc
import pytest

from baton.v1 import directory_pb2, directory_pb2_grpc, router_pb2_grpc, worker_pb2, worker_pb2_grpc
from baton_client import Baton
from cli.cluster import ClusterSpec
from cli.containers.probe import probe_router, probe_worker
from cli.doctor.cluster import check_cluster
from cli.doctor.finding import Level
from cli.errors import CommandError
from cli.security.access import Access, Secure, open_channel
from cli.security.authority import Authority
from cli.security.certs import make_certificates
from cli.start.ports import free_port
from shared.rpc.tls.identity import PeerRole
from tests.e2e.asking import ask, prompt_of
from tests.e2e.conftest import BLOCK_SIZE, ENGINE_FLAGS
from tests.e2e.oracle import expect
from tests.fakes.directory.secure_redis import SecureRedis
from tests.fakes.processes.warm_cluster import WarmCluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cli.security.certs import CertificateFolder
    from shared.engine.llm import LLM

NUM_TOKENS = 24
PROMPT_TOKENS = 5 * BLOCK_SIZE + 3
#: So many requests use the certificates of each renewal.
NUM_AFTER = 8
#: Between two requests of a client, three of which would keep a core busy while certificates age.
PAUSE_S = 0.05


@dataclass
class Running:
    """A cluster, asked as a client would that knows the CA and has no certificate."""

    local: WarmCluster
    certificates: CertificateFolder
    model: Path
    channel: grpc.Channel

    def router_stub(self) -> router_pb2_grpc.RouterStub:
        return router_pb2_grpc.RouterStub(self.channel)

    def workers(self) -> dict[str, str]:
        """Addresses by name."""
        directory = f"127.0.0.1:{self.local.router_ports[0][1]}"
        with open_channel(directory, self.local.spec.secure) as channel:
            stub = directory_pb2_grpc.DirectoryStub(channel)
            found = stub.ListWorkers(directory_pb2.ListWorkersRequest(), timeout=5).workers
        return {one.record.worker.name: one.record.address for one in found}


@pytest.fixture(scope="module", params=["router", "redis"])
def running(
    request: pytest.FixtureRequest, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """For all tests with this directory; the last one replaces the certificates."""
    tmp_path = tmp_path_factory.mktemp(f"tls-{request.param}")
    certificates = make_certificates(tmp_path / "certs")
    if request.param == "router":
        yield from cluster_with(certificates, checkpoint, tmp_path, None)
        return
    redis_server = SecureRedis(
        tmp_path / "redis", Authority.load(certificates.ca, certificates.ca_key)
    )
    redis_server.start()
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("BATON_REDIS_PASSWORD_FILE", str(redis_server.password_file))
        yield from cluster_with(certificates, checkpoint, tmp_path, redis_server.url)
    with redis_server.client() as client:
        assert client.keys("baton:worker:*") == []
    redis_server.kill()


def cluster_with(
    certificates: CertificateFolder, model: Path, folder: Path, redis_url: str | None
) -> Iterator[Running]:
    """Stopped at the end, and nothing had to be killed."""
    spec = ClusterSpec(
        model=model,
        served_model_name="tiny",
        log_folder=folder,
        port=free_port(),
        grpc_port=free_port(),
        num_prefill=2,
        worker_flags=(*ENGINE_FLAGS, "--connectors", "zmq"),
        router_flags=("--placement", "disaggregated"),
        redis_url=redis_url,
        certificates=certificates,
    )
    with WarmCluster(spec) as local:
        local.start()
        local.wait_ready(lambda _: None)
        with open_channel(spec.directory, Secure(certificates.ca)) as channel:
            yield Running(local, certificates, model, channel)
    assert local.killed == []


def test_the_tokens_are_those_of_one_engine(running: Running, oracle: LLM) -> None:
    """I1, with every byte between processes encrypted."""
    for seed in range(4):
        prompt = prompt_of(PROMPT_TOKENS, seed=seed)
        reply = ask(running, prompt, max_tokens=8, temperature=0.0, ignore_eos=True)
        assert reply.token_ids == expect(oracle, prompt, max_tokens=8, temperature=0.0)
        assert reply.usage.sources.transferred > 0, "nothing came from a prefill worker"
    spec = running.local.spec
    own_port = f"127.0.0.1:{running.local.router_ports[0][1]}"
    found = check_cluster(url=spec.url, directory=own_port, access=Access(spec.secure))
    findings = list(found or ())
    assert {finding.level for finding in findings} == {Level.OK}, findings
    num = 2 + 3 + 1 + 2
    assert len(findings) == num, "the router and its clock, three workers, weights, two pairs"
    secure = Secure(running.certificates.ca)
    with Baton(running.local.spec.directory, credentials=secure.credentials()) as baton:
        assert [model.id for model in baton.models()] == ["tiny"]
    url = f"{running.local.spec.url}/v1/models"
    with urllib.request.urlopen(url, context=secure.context(), timeout=5) as response:
        assert b"tiny" in response.read()
    _assert_probes_are_answered(running)


def _assert_probes_are_answered(running: Running) -> None:
    """A health check runs beside its service, and shows the certificate that this one has."""
    certificates, spec = running.certificates, running.local.spec
    assert "ready" in probe_router("127.0.0.1", spec.port, Secure(certificates.ca))
    host, _, port = running.workers()["decode-0"].rpartition(":")
    role = PeerRole.DECODE
    own = Secure(certificates.ca, certificates.cert(role), certificates.key(role))
    assert probe_worker(host, int(port), own) == "SERVING"
    with pytest.raises(CommandError):
        probe_worker(host, int(port))


def test_outsiders_stay_outside(running: Running) -> None:
    """Real processes, one try per door."""
    certificates, spec = running.certificates, running.local.spec
    plain_url = spec.url.replace("https:", "http:")
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        urllib.request.urlopen(f"{plain_url}/v1/models", timeout=5)
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        urllib.request.urlopen(
            f"{spec.url}/v1/models", context=ssl.create_default_context(), timeout=5
        )
    client = Secure(
        certificates.ca, certificates.cert(PeerRole.CLIENT), certificates.key(PeerRole.CLIENT)
    )
    own_port = f"127.0.0.1:{running.local.router_ports[0][1]}"
    for secure in (None, Secure(certificates.ca), client):
        for address in (*running.workers().values(), own_port, spec.directory):
            with open_channel(address, secure) as channel:
                for call in (
                    lambda c: worker_pb2_grpc.WorkerStub(c).GetLoad(
                        worker_pb2.GetLoadRequest(), timeout=5
                    ),
                    lambda c: directory_pb2_grpc.DirectoryStub(c).ListWorkers(
                        directory_pb2.ListWorkersRequest(), timeout=5
                    ),
                ):
                    with pytest.raises(grpc.RpcError) as error:
                        call(channel)
                    assert error.value.code() in (
                        grpc.StatusCode.UNAVAILABLE,
                        grpc.StatusCode.UNAUTHENTICATED,
                        grpc.StatusCode.UNIMPLEMENTED,
                    )


def test_certificates_are_renewed_under_load_and_no_request_fails(
    running: Running, oracle: LLM
) -> None:
    """The leaves of all processes are replaced three times; then a worker that is new joins in."""
    prompts = [prompt_of(PROMPT_TOKENS, seed=100 + seed) for seed in range(6)]
    answers: list[tuple[int, object]] = []
    over = threading.Event()

    def load(number: int) -> None:
        while not over.is_set():
            number = (number + 1) % len(prompts)
            try:
                reply: object = ask(
                    running, prompts[number], max_tokens=NUM_TOKENS, temperature=0.0,
                    ignore_eos=True,
                ).token_ids  # fmt: skip
            except grpc.RpcError as error:
                reply = error
            answers.append((number, reply))
            over.wait(PAUSE_S)

    threads = [threading.Thread(target=load, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(3):
            make_certificates(running.certificates.path)
            # Each process looks once a second, when there is a reason to.
            over.wait(1.1)
            before = len(answers)
            while len(answers) < before + NUM_AFTER:
                running.local.require_running()
                over.wait(0.05)
        workers = {process.name: process for process in running.local.workers}
        restarted = workers["prefill-0"]
        restarted.ask_to_stop()
        assert restarted.wait(30)
        restarted.start()
        while "prefill-0" not in running.workers():
            over.wait(0.1)
    finally:
        over.set()
        for thread in threads:
            thread.join(60)
    wanted = [expect(oracle, prompt, max_tokens=NUM_TOKENS, temperature=0.0) for prompt in prompts]
    assert [(n, answer) for n, answer in answers if answer != wanted[n]] == []
    served = ssl.get_server_certificate(("127.0.0.1", running.local.spec.port))
    on_disk = running.certificates.cert(PeerRole.ROUTER).read_text()
    assert served.split() == on_disk.split()
