"""A cluster of local processes: routers, prefill workers, decode workers."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from cli.places import SHIPPED_MODEL, SHIPPED_MODEL_NAME
from cli.processes import ServiceProcess, stop_all
from cli.security.access import Secure, make_cluster_token, token_metadata
from cli.start.cluster_file import ClusterModel
from cli.start.ports import free_port, require_free
from cli.start.readiness import ReadinessProbe
from cli.start.restarts import Restarts
from cli.start.status import StartWatch
from shared.address import host_from_here, join_address
from shared.rpc.tls.https_settings import HttpsSettings
from shared.rpc.tls.identity import PeerRole

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from cli.security.certs import CertificateFolder
    from cli.start.status import Status


#: How a router's note on missing prefill workers begins, behind the name of the model.
NO_PREFILL = "no prefill worker is ready"
#: Of the HTTP port's own certificate.
_HTTPS_VARIABLES = tuple(
    f"BATON_{field.name.upper()}" for field in dataclasses.fields(HttpsSettings)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """The processes of a cluster and their settings."""

    model: Path = SHIPPED_MODEL
    #: One name, or several separated by commas.
    served_model_name: str = SHIPPED_MODEL_NAME
    log_folder: Path
    host: str = "127.0.0.1"
    port: int = 8000
    grpc_port: int = 50051
    #: In place of `model` and the numbers of its workers: several models, the default one first.
    models: tuple[ClusterModel, ...] = ()
    #: Several routers share the two ports; each then has two more of its own.
    num_routers: int = 1
    num_prefill: int = 1
    num_decode: int = 1
    router_flags: tuple[str, ...] = ()
    #: Flags of both kinds of worker, followed by those of one kind, which have precedence.
    worker_flags: tuple[str, ...] = ()
    prefill_flags: tuple[str, ...] = ()
    decode_flags: tuple[str, ...] = ()
    #: On one machine a prompt must not slow answers in progress.
    prefill_niceness: int = 10
    #: URL of the directory; by default the routers have one.
    redis_url: str | None = None
    #: Files; with keys but no token, the cluster makes its own token.
    api_keys: Path | None = None
    #: Keys without tenants, as texts.
    client_keys: tuple[str, ...] = ()
    cluster_token: Path | None = None
    #: Whether the HTTP port has a certificate of its own.
    has_https: bool = False
    #: Certificates of every role; without them nothing is encrypted.
    certificates: CertificateFolder | None = None
    start_timeout_s: float = 180.0
    grace_s: float = 15.0
    #: Package with the services' modules.
    services: str = "services"

    @property
    def all_models(self) -> tuple[ClusterModel, ...]:
        """The models with their workers; the one of `model`, unless there are several."""
        if self.models:
            return self.models
        name, *aliases = self.served_model_name.split(",")
        return (
            ClusterModel(
                name=name,
                path=self.model,
                aliases=tuple(aliases),
                num_prefill=self.num_prefill,
                num_decode=self.num_decode,
            ),
        )

    @property
    def has_keys(self) -> bool:
        """Whether clients must show a key."""
        return self.api_keys is not None or bool(self.client_keys)

    @property
    def url(self) -> str:
        """Base URL of the HTTP API for a client on this machine."""
        scheme = "https" if self.has_https or self.certificates is not None else "http"
        return f"{scheme}://{join_address(self.client_host, self.port)}"

    @property
    def directory(self) -> str:
        """Address of the router's gRPC services for a client on this machine."""
        return join_address(self.client_host, self.grpc_port)

    @property
    def secure(self) -> Secure | None:
        """The TLS files with which this command reaches the cluster."""
        if self.certificates is None:
            return None
        role = PeerRole.OPERATOR
        return Secure(
            self.certificates.ca, self.certificates.cert(role), self.certificates.key(role)
        )

    @property
    def num_threads(self) -> int:
        """Number of threads of each worker: its share of the cores."""
        num_workers = sum(each.num_prefill + each.num_decode for each in self.all_models)
        return max(1, len(os.sched_getaffinity(0)) // num_workers)

    @property
    def client_host(self) -> str:
        """Address to connect to: `host` may mean all addresses."""
        return host_from_here(self.host)


class Cluster:
    """Use as a context manager: leaving it stops every process and frees every port."""

    def __init__(self, spec: ClusterSpec) -> None:
        self._makes_token = False
        if spec.has_keys and spec.cluster_token is None:
            spec = replace(spec, cluster_token=spec.log_folder / "cluster-token")
            self._makes_token = True
        self.spec = spec
        #: HTTP and gRPC port of each single router.
        self.router_ports = [(spec.port, spec.grpc_port)]
        names = ["router"]
        #: With TLS workers join on a separate port that requires a certificate.
        self._own_ports = spec.num_routers > 1 or spec.certificates is not None
        if self._own_ports:
            host = spec.client_host
            self.router_ports = [
                (free_port(host), free_port(host)) for _ in range(spec.num_routers)
            ]
        if spec.num_routers > 1:
            names = [f"router-{number}" for number in range(spec.num_routers)]
        self.routers = [
            self._process(name, "router", self._router_flags(*ports))
            for name, ports in zip(names, self.router_ports, strict=True)
        ]
        #: By model and role.
        self._groups = [
            self._workers(model, role, count)
            for model in spec.all_models
            for role, count in (("prefill", model.num_prefill), ("decode", model.num_decode))
        ]
        self.workers = [worker for group in self._groups for worker in group]
        self._restarts = [Restarts(each) for each in self.kinds()]
        #: Names of processes that did not stop in time and were killed.
        self.killed: list[str] = []

    @property
    def processes(self) -> list[ServiceProcess]:
        """All processes, the routers first."""
        return [*self.routers, *self.workers]

    def prepare(self) -> None:
        """Write the files that processes read at start. Safe to repeat.

        Raises:
            CommandError: one of the router's ports is in use, or a file cannot be written.
        """
        spec = self.spec
        require_free(spec.host, spec.port, flag="--port", variable="PORT")
        require_free(spec.host, spec.grpc_port, flag="--grpc-port", variable="GRPC_PORT")
        if self._makes_token and spec.cluster_token is not None:
            make_cluster_token(spec.cluster_token)

    def start(self) -> None:
        """Start every process. Raises as `prepare`."""
        self.prepare()
        for process in self.processes:
            process.start()

    def wait_ready(self, show: Callable[[Sequence[Status]], None]) -> None:
        """Wait until every router serves and every worker has joined it; call `show` with the
        progress.

        Raises:
            CommandError: a process ended, or it took too long.
        """
        with ExitStack() as stack:
            probes = [stack.enter_context(closing(self._probe(*p))) for p in self.router_ports]
            StartWatch(self.routers, self.workers, probes, is_meant=self._is_meant).wait(
                show,
                require_running=self.require_running,
                timeout_s=self.spec.start_timeout_s,
            )

    def require_running(self) -> None:
        """Raise CommandError if a process has ended."""
        for process in (*self.workers, *self.routers):
            process.require_running()

    def keep_running(self, say: Callable[[str], None]) -> None:
        """Restart ended processes while others of their kind run; `say` a line about each.

        Raises:
            CommandError: the last process of a kind has ended.
        """
        for restarts in self._restarts:
            restarts.look(say)

    def stop(self) -> None:
        """Stop every process. Safe to repeat."""
        self.killed = stop_all(self.processes, grace_s=self.spec.grace_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def kinds(self) -> list[list[ServiceProcess]]:
        """Return the processes that can replace each other: of one service, for one model.

        Workers first: after the failure of a worker, the routers only wait for it.
        """
        return [group for group in (*self._groups, self.routers) if group]

    def _workers(self, model: ClusterModel, role: str, count: int) -> list[ServiceProcess]:
        # Names of models may have slashes, and those of workers are names of files.
        prefix = f"{re.sub(r'[^A-Za-z0-9._-]+', '-', model.name)}-" if self.spec.models else ""
        names = [f"{prefix}{role}-{number}" for number in range(count)]
        return [self._process(n, role, self._worker_flags(n, role, model)) for n in names]

    def _is_meant(self, note: str) -> bool:
        """Return whether a router's note is of prefill workers that this cluster does not have."""
        without = [model for model in self.spec.all_models if not model.num_prefill]
        prefixes = [f"{m.name}: " for m in without] if self.spec.models else [""] * len(without)
        return any(note.startswith(f"{prefix}{NO_PREFILL}") for prefix in prefixes)

    def _process(self, name: str, role: str, flags: Sequence[str]) -> ServiceProcess:
        log = self.spec.log_folder / f"{name}.log"
        # All users of the machine can read a command line, and the URL may contain a password.
        keys = self.spec.client_keys
        environ = {
            "BATON_REDIS_URL": self.spec.redis_url,
            "BATON_API_KEYS": _absolute(self.spec.api_keys),
            "BATON_CLIENT_KEYS": json.dumps(keys) if keys else None,
            "VLLM_API_KEY": None,
            "BATON_CLUSTER_TOKEN": _absolute(self.spec.cluster_token),
        }
        if not self.spec.has_https:
            environ |= dict.fromkeys(_HTTPS_VARIABLES)
        if self.spec.certificates is not None:
            environ |= self.spec.certificates.environ(PeerRole(role))
        return ServiceProcess(name, f"{self.spec.services}.{role}", flags, log, environ=environ)

    def _probe(self, port: int, grpc_port: int) -> ReadinessProbe:
        host = self.spec.client_host
        scheme = self.spec.url.partition(":")[0]
        return ReadinessProbe(
            url=f"{scheme}://{join_address(host, port)}",
            directory=join_address(host, grpc_port),
            secure=self.spec.secure,
            verifies_http=not self.spec.has_https,
            metadata=token_metadata(self.spec.cluster_token),
        )

    def _router_flags(self, own_port: int, own_grpc_port: int) -> list[str]:
        spec = self.spec
        flags = [*self._model_flags(), "--host", spec.host]
        flags += ["--port", str(spec.port), "--grpc-port", str(spec.grpc_port)]
        if self._own_ports:
            flags += ["--own-port", str(own_port), "--own-grpc-port", str(own_grpc_port)]
        if spec.num_routers > 1:
            flags.append("--share-ports")
        return [*flags, *spec.router_flags]

    def _worker_flags(self, name: str, role: str, model: ClusterModel) -> list[str]:
        # Workers take a free port and report it to every router. All are on this machine, so no
        # other machine needs to reach them.
        spec, host = self.spec, self.spec.client_host
        flags = ["--model", str(model.path), "--served-model-name", ",".join(model.names)]
        flags += ["--name", name, "--host", "127.0.0.1", "--port", "0"]
        if spec.redis_url is None:
            directory = ",".join(
                join_address(host, grpc_port) for _, grpc_port in self.router_ports
            )
            flags += ["--directory", directory]
        # Workers that spin on the same core slow each other down.
        flags += ["--num-threads", str(spec.num_threads), "--core-lease", "auto"]
        if role == "prefill":
            flags += ["--niceness", str(spec.prefill_niceness)]
            return [*flags, *spec.worker_flags, *spec.prefill_flags, *model.prefill_flags]
        return [*flags, *spec.worker_flags, *spec.decode_flags, *model.decode_flags]

    def _model_flags(self) -> list[str]:
        """Return the router's flags of one model, or of several."""
        spec = self.spec
        if spec.models:
            return ["--models", json.dumps([model.to_router() for model in spec.models])]
        return ["--model", str(spec.model), "--served-model-name", spec.served_model_name]


def _absolute(path: Path | None) -> str | None:
    return None if path is None else str(path.absolute())
