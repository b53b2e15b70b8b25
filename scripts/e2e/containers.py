"""What the containers of a cluster may do, how large their images are, and what the doctor says."""

from __future__ import annotations

import json
import re
import subprocess
from typing import TYPE_CHECKING

from scripts.e2e.compose import docker

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scripts.e2e.compose import Compose

OURS = ("router", "prefill", "decode")
USER_ID = "10001"
NO_CAPABILITIES = "0000000000000000"
METRICS = "http://127.0.0.1:9400/metrics"


def show_sizes(compose: Compose) -> None:
    """Print how large each image is, and see that the router's has no torch."""
    for service in ("router", "decode"):
        [container, *_] = compose.containers(service)
        image = docker("inspect", "--format", "{{.Config.Image}}", container).strip()
        size = int(docker("image", "inspect", "--format", "{{.Size}}", image))
        print(f"  {image}: {size / 1e6:,.0f} MB", flush=True)
    code = "import importlib.util as u; print([n for n in ('torch', 'triton') if u.find_spec(n)])"
    found = compose("exec", "-T", "router", "/opt/venv/bin/python", "-c", code).strip()
    assert found == "[]", f"the router's image has {found}"


def check_confinement(compose: Compose) -> None:
    """Processes have no privileges, and nothing was written outside of volumes."""
    for service in OURS:
        for container in compose.containers(service):
            _check_settings(container)
            status = _status_of(container)
            assert set(status["Uid"].split()) == {USER_ID}, status["Uid"]
            for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb"):
                assert status[name] == NO_CAPABILITIES, f"{container}: {name} {status[name]}"
            assert status["NoNewPrivs"] == "1", container
            touch = ["docker", "exec", container, "touch", "/opt/baton/here"]
            refused = subprocess.run(touch, stderr=subprocess.PIPE, text=True, check=False)
            assert "Read-only file system" in refused.stderr, refused
            print(f"  {container}: user {USER_ID}, no capability, read-only root", flush=True)


def _check_settings(container: str) -> None:
    [found] = json.loads(docker("inspect", container))
    host = found["HostConfig"]
    assert host["ReadonlyRootfs"], container
    assert not host["Privileged"], container
    assert not host["CapAdd"], host["CapAdd"]
    assert not host["NetworkMode"].startswith("host"), host["NetworkMode"]


def _status_of(container: str) -> Mapping[str, str]:
    """What the kernel says of its first process."""
    text = docker("exec", container, "cat", "/proc/1/status")
    return dict(re.findall(r"^(\w+):\s+(.*)$", text, re.MULTILINE))


def ask_doctor(
    compose: Compose, *, services: Sequence[str] = ("router", "decode"), worker: Sequence[str] = ()
) -> None:
    """`baton doctor`, with more flags, in a router's and in a worker's container is content."""
    for service in services:
        flags = () if service == "router" else ("--host", "router", *worker)
        words = ("baton", "doctor", "--require-cluster", *flags)
        report = compose("exec", "-T", service, *words)
        print("".join(f"  | {line}\n" for line in report.splitlines()), flush=True)
        for check in ("python", "memory", "redis", "tls", "model", "router", "→"):
            assert re.search(rf"^\s*ok\s+.*{check}", report, re.MULTILINE), f"no check of {check}"
        assert report.rstrip().endswith("0 failed"), service


def num_running(container: str) -> int:
    """How many sequences a worker is computing."""
    code = f"import urllib.request as u; print(u.urlopen({METRICS!r}).read().decode())"
    text = docker("exec", container, "/opt/venv/bin/python", "-c", code)
    found = re.findall(r"^baton_num_requests_running(?:{.*})? (\S+)$", text, re.MULTILINE)
    number = int(sum(map(float, found)))
    print(f"  {container}: {number} running", flush=True)
    return number
