"""A cluster of `docker compose`, from a fresh copy of this tree, that leaves nothing behind."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scripts.e2e.asking import Door, free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ROOT = Path(__file__).resolve().parents[2]
PROJECT = "baton-e2e"
#: Names that nobody uses, so that `up` finds no image, as on an empty machine.
IMAGES = {"ROUTER_IMAGE": "baton-router:e2e", "WORKER_IMAGE": "baton-worker:e2e"}


def docker(*words: str) -> str:
    """What `docker` says.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    done = subprocess.run(["docker", *words], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def remove_images() -> None:
    """Those of the trials, if they are there. The layers stay in the builder's cache."""
    there = docker("image", "ls", "--format", "{{.Repository}}:{{.Tag}}").split()
    for image in set(IMAGES.values()).intersection(there):
        docker("image", "rm", image)


class Compose:
    """One project, with settings in a .env of its own, on ports of its own.

    Entering it copies the tree, as far as Git knows it; leaving it removes all of the project. A
    .env of the tree itself is neither read nor changed. COMPOSE_FILES in the environment names more
    files, e.g. one with other base images.
    """

    def __init__(
        self, *files: str, project: str = PROJECT, settings: Mapping[str, str] | None = None
    ) -> None:
        self.project = project
        extra = [str(ROOT / name) for name in os.environ.get("COMPOSE_FILES", "").split()]
        self._command = ["docker", "compose", "-p", project]
        self._command += [word for file in (*files, *extra) for word in ("-f", file)]
        self.port, self.grpc_port, self.prometheus_port, self.grafana_port = free_ports(4)
        self._settings = {
            "PORT": str(self.port),
            "GRPC_PORT": str(self.grpc_port),
            "PROMETHEUS_PORT": str(self.prometheus_port),
            "GRAFANA_PORT": str(self.grafana_port),
            **IMAGES,
            **(settings or {}),
        }
        # What a shell has set goes before .env.
        self._environ = {k: v for k, v in os.environ.items() if k not in self._settings}
        #: Of the copy; there is none before it is entered.
        self.folder = Path(tempfile.gettempdir())

    def __call__(self, *words: str) -> str:
        """Run it; what it says of its progress goes to the terminal.

        Raises:
            subprocess.CalledProcessError: it failed.
        """
        print(f"$ docker compose -p {self.project} {' '.join(words)}", flush=True)
        started_at = time.monotonic()
        done = self._run(words, stdout=subprocess.PIPE, check=True)
        print(f"  {time.monotonic() - started_at:.1f} s", flush=True)
        return done.stdout

    def failure(self, *words: str) -> str:
        """What it says when it fails, as it should."""
        print(f"$ docker compose -p {self.project} {' '.join(words)}", flush=True)
        done = self._run(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        assert done.returncode, f"{words} should have failed"
        return done.stderr

    def _run(self, words: Sequence[str], **how: Any) -> subprocess.CompletedProcess[str]:
        command = [*self._command, *words]
        return subprocess.run(command, env=self._environ, cwd=self.folder, text=True, **how)

    def door(self, *, ca_pem: bytes | None = None) -> Door:
        """Where its router is."""
        return Door(port=self.port, grpc_port=self.grpc_port, ca_pem=ca_pem)

    def containers(self, service: str) -> Sequence[str]:
        """Names of a service's running containers."""
        rows = self("ps", "--format", "json", service).splitlines()
        return [json.loads(row)["Name"] for row in rows]

    def put(self, name: str, text: str) -> None:
        """Write a file beside compose.yaml, for all to read."""
        (self.folder / name).write_text(text, encoding="utf-8")

    def __enter__(self) -> Compose:
        self.folder = Path(tempfile.mkdtemp(prefix="baton-e2e-"))
        _copy_tree(self.folder)
        self.put(".env", "".join(f"{name}={value}\n" for name, value in self._settings.items()))
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is not None:
                print(self("logs", "--tail", "30"), file=sys.stderr)
            self("--profile", "*", "down", "-v", "--remove-orphans")
        finally:
            shutil.rmtree(self.folder)
        left = list(self._leftovers())
        assert not left, f"left behind: {left}"
        print("  nothing is left behind", flush=True)

    def _leftovers(self) -> Iterator[str]:
        """What of the project Docker still has."""
        for kind in ("container", "volume", "network"):
            everything = ["--all"] if kind == "container" else []
            label = f"label=com.docker.compose.project={self.project}"
            yield from docker(kind, "ls", "-q", *everything, "--filter", label).split()


def _copy_tree(folder: Path) -> None:
    """What a clone would have, and what is not committed yet."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        source, target = ROOT / name, folder / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
