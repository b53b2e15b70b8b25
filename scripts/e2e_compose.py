"""Tries `docker compose up` on a real engine, from nothing to nothing. `make e2e-compose` runs it.

Needs Docker with Compose v2 and the project's virtual environment (for the SDK). Uses projects of
its own, so that a cluster that is running stays as it is. COMPOSE_FILES adds files, e.g. one that
names other base images.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from baton_client import BatonError
from scripts.e2e_asking import (
    NUM_STREAMS,
    Door,
    ask_over_grpc,
    ask_over_http,
    free_ports,
    stream_many,
    text_of,
)
from scripts.e2e_panels import empty_panels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

ROOT = Path(__file__).resolve().parents[1]
PROJECT = "baton-e2e"
PANELS_S = 90


class Compose:
    """`docker compose` for one project, on ports of its own. Leaving it removes all of it."""

    def __init__(
        self, *files: str, project: str = PROJECT, environ: Mapping[str, str] | None = None
    ) -> None:
        self.project = project
        self._command = ["docker", "compose", "-p", project]
        extra = os.environ.get("COMPOSE_FILES", "").split()
        self._command += [word for file in (*files, *extra) for word in ("-f", file)]
        self.port, self.grpc_port, self.prometheus_port, grafana_port = free_ports(4)
        self._environ = {
            **os.environ,
            "PORT": str(self.port),
            "GRPC_PORT": str(self.grpc_port),
            "PROMETHEUS_PORT": str(self.prometheus_port),
            "GRAFANA_PORT": str(grafana_port),
            **(environ or {}),
        }

    def __call__(self, *words: str) -> str:
        """Run it; what it says of its progress goes to the terminal.

        Raises:
            subprocess.CalledProcessError: it failed.
        """
        print(f"$ docker compose -p {self.project} {' '.join(words)}", flush=True)
        started_at = time.monotonic()
        done = subprocess.run(
            [*self._command, *words],
            env=self._environ,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        print(f"  {time.monotonic() - started_at:.1f} s", flush=True)
        return done.stdout

    def door(self, *, ca_pem: bytes | None = None) -> Door:
        """Where its router is."""
        return Door(port=self.port, grpc_port=self.grpc_port, ca_pem=ca_pem)

    def containers(self, service: str) -> Sequence[str]:
        """Names of a service's running containers."""
        rows = self("ps", "--format", "json", service).splitlines()
        return [json.loads(row)["Name"] for row in rows]

    def __enter__(self) -> Compose:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            print(self("logs", "--tail", "30"), file=sys.stderr)
        self("--profile", "*", "down", "-v", "--remove-orphans")
        left = list(self._leftovers())
        assert not left, f"left behind: {left}"
        print("  nothing is left behind", flush=True)

    def _leftovers(self) -> Iterator[str]:
        """What of the project Docker still has."""
        for kind in ("container", "volume", "network"):
            command = ["docker", kind, "ls", "-q", *(["--all"] if kind == "container" else [])]
            command += ["--filter", f"label=com.docker.compose.project={self.project}"]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            yield from done.stdout.split()


def try_plain(observability: Sequence[str]) -> None:
    """One machine: answers, more workers, one of them killed, dashboards."""
    with Compose("compose.yaml") as compose:
        compose("up", "-d", "--wait", "--build")
        door = compose.door()
        _ask(door)
        compose("up", "-d", "--wait", "--no-recreate", "--scale", "decode=2")
        if observability:
            compose("--profile", "observability", "up", "-d", "--no-recreate",
                    "--scale", "decode=2", *observability)  # fmt: skip
        victim = compose.containers("decode")[-1]
        quiet = asyncio.run(stream_many(door, 0, lambda: None))

        def kill() -> None:
            print(f"$ docker kill {victim}", flush=True)
            subprocess.run(["docker", "kill", victim], check=True, stdout=subprocess.DEVNULL)

        disturbed = asyncio.run(stream_many(door, 0.5, kill))
        assert disturbed == quiet, "an answer changed when a decode worker was killed"
        print(f"  {len(disturbed)} of {NUM_STREAMS} answers complete and equal")
        if observability:
            _look_at_panels(door, f"http://127.0.0.1:{compose.prometheus_port}")


def try_tls() -> None:
    """The same cluster with certificates: answers over HTTPS and gRPC with TLS."""
    with Compose("compose.yaml", "compose.tls.yaml", project=f"{PROJECT}-tls") as compose:
        compose("up", "-d", "--wait", "--build")
        ca_pem = compose("exec", "-T", "router", "cat", "/certs/ca.crt").encode()
        _ask(compose.door(ca_pem=ca_pem))


def try_two_hosts(address: str) -> None:
    """Two projects that know of each other what two machines would; both are at `address`."""
    first = {"HOST_ADDRESS": address, "PREFILL_REPLICAS": "0", "BATON_LOCAL_PREFILL_THRESHOLD": "0"}
    second = {"HOST_ADDRESS": address, "FIRST_HOST": address,
              "WORKER_PORT": "50071", "TRANSFER_PORT": "50072"}  # fmt: skip
    with (
        Compose("compose.yaml", "compose.first-host.yaml",
                project=f"{PROJECT}-one", environ=first) as one,
        tempfile.TemporaryDirectory() as folder,
    ):  # fmt: skip
        one("up", "-d", "--wait", "--build")
        token = Path(folder) / "cluster-token"
        token.write_text(one("exec", "-T", "router", "cat", "/secrets/cluster-token"))
        Path(folder).chmod(0o755)
        token.chmod(0o644)
        second["CLUSTER_TOKEN_FILE"] = str(token)
        project = f"{PROJECT}-two"
        with Compose("compose.second-host.yaml", project=project, environ=second) as two:
            two("up", "-d", "--wait")
            content = _ask(one.door())
            assert content["timings"]["prefill_worker"], "the second host computed nothing"


def _ask(door: Door) -> dict[str, Any]:
    """The same question over HTTP and gRPC has the same answer; returns that over HTTP."""
    content = asyncio.run(ask_over_http(door))
    over_grpc = asyncio.run(ask_over_grpc(door))
    print(f"  over HTTP: {text_of(content)}\n  over gRPC: {over_grpc}", flush=True)
    assert text_of(content).strip() == over_grpc.strip() != ""
    return content


def _look_at_panels(door: Door, prometheus: str) -> None:
    """Under load, every panel of every dashboard has something to show."""
    deadline = time.monotonic() + PANELS_S
    while True:
        asyncio.run(stream_many(door, 0, lambda: None))
        empty = empty_panels(ROOT / "observability" / "grafana" / "dashboards", prometheus)
        if not empty or time.monotonic() > deadline:
            break
    assert not empty, f"panels without data: {empty}"
    print("  every panel of every dashboard has data", flush=True)


def main() -> int:
    """Exit code 0 if all went well."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--observability",
        default="",
        metavar="SERVICES",
        help="also these of that profile, e.g. prometheus,grafana,otel-collector, and its panels",
    )
    parser.add_argument("--tls", action="store_true", help="also with compose.tls.yaml")
    parser.add_argument(
        "--two-hosts",
        metavar="ADDRESS",
        help="also two projects that reach each other at this address of this machine, e.g. that "
        "of the bridge docker0",
    )
    options = parser.parse_args()
    observability = [name for name in options.observability.split(",") if name]
    trials: dict[str, Callable[[], None]] = {"plain": lambda: try_plain(observability)}
    if options.tls:
        trials["tls"] = try_tls
    if options.two_hosts:
        trials["two hosts"] = lambda: try_two_hosts(options.two_hosts)
    return 1 if failed(trials) else 0


def failed(trials: Mapping[str, Callable[[], None]]) -> Sequence[str]:
    """Names of the trials that did not go well; each is made whatever became of the others."""
    names = []
    for name, trial in trials.items():
        print(f"== {name}", flush=True)
        try:
            trial()
        except (
            AssertionError,
            subprocess.CalledProcessError,
            httpx.HTTPError,
            BatonError,
        ) as error:
            print(f"== {name} FAILED: {error!r}", flush=True)
            names.append(name)
    print(f"{len(trials) - len(names)} of {len(trials)} trials went well", flush=True)
    return names


if __name__ == "__main__":
    sys.exit(main())
