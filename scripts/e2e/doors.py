"""The doors of a cluster of containers: none is open that no setting has opened."""

from __future__ import annotations

import json
import re
import socket
import subprocess
from typing import TYPE_CHECKING, Any

import httpx

from scripts.e2e.compose import docker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scripts.e2e.compose import Compose

LOOPBACK = "127.0.0.1"
#: What earlier versions had, what images come with, and what people try first.
KNOWN_PASSWORDS = ("baton-on-this-machine", "baton", "redis", "password", "admin", "secret")
SECRETS = ("cluster-token", "redis-password")


def check_doors(compose: Compose) -> None:
    """No port beyond this machine, no known password, no secret where others see it."""
    containers = list(_containers(compose))
    for container in containers:
        _check_ports(container)
        _check_mounts(container)
        _check_environment(compose, container)
    _check_redis(compose)
    print(f"  {len(containers)} containers: nothing listens beyond {LOOPBACK}, no known password, "
          "each role has its own secrets", flush=True)  # fmt: skip


def check_grafana(grafana: str) -> None:
    """Dashboards are open on this machine; the administrator's password is not a known one."""
    for password in KNOWN_PASSWORDS:
        answer = httpx.get(f"{grafana}/api/org/users", auth=("admin", password), timeout=30)
        assert answer.status_code == 401, f"admin/{password}: {answer.status_code}"


def check_open_needs_keys(compose: Compose) -> None:
    """BIND_ADDRESS alone starts nothing and says why."""
    said = compose.failure("up", "-d", "--wait")
    assert "secret" in said, said
    why = compose("logs", "--no-log-prefix", "secret")
    print("".join(f"  | {line}\n" for line in why.splitlines()), flush=True)
    assert "API_KEYS_FILE" in why, why
    assert compose.containers("router") == []


def check_keys_are_asked_for(compose: Compose, key: str) -> None:
    """Open to others, with keys: 401 without one, an answer with one."""
    url = f"http://{LOOPBACK}:{compose.port}/v1/models"
    shown = {"authorization": f"Bearer {key}"}
    codes = [httpx.get(url, headers=each, timeout=30).status_code for each in ({}, shown)]
    print(f"  without a key {codes[0]}, with one {codes[1]}", flush=True)
    assert codes == [401, 200]


def _containers(compose: Compose) -> Iterator[dict[str, Any]]:
    ids = compose("ps", "--all", "-q").split()
    yield from json.loads(docker("inspect", *ids))


def _check_ports(container: dict[str, Any]) -> None:
    for port, bindings in (container["NetworkSettings"]["Ports"] or {}).items():
        for binding in bindings or ():
            print(f"  {container['Name']} {port} at {binding['HostIp']}:{binding['HostPort']}")
            assert binding["HostIp"] == LOOPBACK, container["Name"]
            for address in _other_addresses():
                with socket.socket() as probe:
                    probe.settimeout(2)
                    reached = probe.connect_ex((address, int(binding["HostPort"]))) == 0
                assert not reached, f"{container['Name']} is reached at {address}"


def _other_addresses() -> list[str]:
    """Of this machine."""
    found = subprocess.run(["hostname", "-I"], stdout=subprocess.PIPE, text=True, check=True)
    return [each for each in found.stdout.split() if ":" not in each]


def _check_mounts(container: dict[str, Any]) -> None:
    service = container["Config"]["Labels"]["com.docker.compose.service"]
    volumes = [mount["Name"] for mount in container["Mounts"] if mount["Type"] == "volume"]
    secret = [name for name in volumes if name.endswith("-secrets")]
    if service not in ("secret", "model"):
        assert len(secret) == 1, f"{container['Name']} has {secret}"


def _check_environment(compose: Compose, container: dict[str, Any]) -> None:
    """Neither the environment nor the command, which `docker inspect` shows, has a secret."""
    shown = json.dumps([container["Config"][name] for name in ("Env", "Cmd", "Entrypoint")])
    for name in SECRETS:
        value = compose("exec", "-T", "router", "cat", f"/secrets/{name}").strip()
        assert len(value) == 64, name
        assert value not in shown, f"{container['Name']} shows {name}"


def _check_redis(compose: Compose) -> None:
    def ask(*flags: str) -> str:
        command = ("exec", "-T", "redis", "redis-cli", "--no-auth-warning", *flags, "ping")
        return compose(*command).strip()

    assert "NOAUTH" in ask()
    for user in ("default", "baton"):
        for password in KNOWN_PASSWORDS:
            said = ask("--user", user, "--pass", password)
            assert not re.search(r"^PONG", said, re.MULTILINE), f"{user}/{password}: {said}"
