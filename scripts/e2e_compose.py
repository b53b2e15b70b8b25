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
import signal
import socket
import subprocess
import sys
import time
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

import httpx

from baton_client import BatonError
from scripts.e2e.asking import ask_over_grpc, ask_over_http, check_plain_is_refused, text_of
from scripts.e2e.compose import PROJECT, ROOT, Compose, docker, remove_images
from scripts.e2e.containers import ask_doctor, check_confinement, num_running, show_sizes
from scripts.e2e.doors import (
    check_doors,
    check_grafana,
    check_keys_are_asked_for,
    check_open_needs_keys,
)
from scripts.e2e.panels import empty_panels, num_panels, rule_names, unloaded_rules, watched
from scripts.e2e.streams import num_replays, stream_many

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from scripts.e2e.asking import Door
    from scripts.e2e.streams import Answers

DASHBOARDS = ROOT / "observability" / "grafana" / "dashboards"
RULES = ROOT / "observability" / "prometheus" / "rules"
#: Processes that Prometheus has to find.
WATCHED = {"router": 1, "prefill": 1, "decode": 2}
WATCH_S = 240


def try_plain(observability: Sequence[str]) -> None:
    """One machine: answers, more workers, some of them lost or stopped, dashboards."""
    # Answers are compared. In bfloat16 PyTorch's products depend on the rows beside them.
    with Compose("compose.yaml", settings={"BATON_DTYPE": "float32"}) as compose:
        compose("up", "-d", "--wait")
        show_sizes(compose)
        check_confinement(compose)
        check_doors(compose)
        door = compose.door()
        _ask(door)
        _two_decode_workers(compose)
        ask_doctor(compose)
        quiet = stream_many(door)
        for command, service in (("kill", "decode"), ("stop", "decode"), ("kill", "prefill")):
            _lose(compose, command, service, quiet)
        if observability:
            compose("--profile", "observability", "up", "-d", "--wait", *observability)
            _look_at_prometheus(door, f"http://127.0.0.1:{compose.prometheus_port}")
            if "grafana" in observability:
                grafana = f"http://127.0.0.1:{compose.grafana_port}"
                _look_at_grafana(grafana)
                check_grafana(grafana)
            check_doors(compose)
        # The last one to serve: what runs is finished, and only then the router ends.
        _lose(compose, "stop", "router", quiet)


def try_settings() -> None:
    """A port that is taken is named; what .env says counts; a model may be one's own."""
    settings = {
        "MODEL_NAME": "mine",
        "SERVED_MODEL_NAME": "renamed",
        "DECODE_REPLICAS": "2",
        "BATON_MAX_MODEL_LEN": "320",
    }
    with Compose("compose.yaml", project=f"{PROJECT}-set", settings=settings) as compose:
        checkpoint = compose.folder / "models" / "pydoc" / "checkpoint"
        compose("run", "--rm", "-v", f"{checkpoint}:/from:ro", "--entrypoint", "cp",
                "model", "-r", "/from", "/models/mine")  # fmt: skip
        with closing(socket.create_server(("127.0.0.1", compose.port))):
            said = compose.failure("up", "-d", "--wait")
        [line] = [line for line in said.splitlines() if "address already in use" in line]
        assert f"127.0.0.1:{compose.port}" in line, said
        print(f"  {line}", flush=True)
        compose("up", "-d", "--wait")
        models = httpx.get(f"{compose.door().url}/models", timeout=30).raise_for_status().json()
        [model] = models["data"]
        print(f"  {json.dumps(model)}", flush=True)
        assert (model["id"], model["max_model_len"]) == ("renamed", 320), model
        assert len(compose.containers("decode")) == 2


def try_open() -> None:
    """Beyond this machine: not without keys, and with them."""
    closed = {"BIND_ADDRESS": "0.0.0.0"}
    with Compose("compose.yaml", project=f"{PROJECT}-open", settings=closed) as compose:
        check_open_needs_keys(compose)
    settings = closed | {"API_KEYS_FILE": "./keys.toml"}
    with Compose("compose.yaml", project=f"{PROJECT}-keys", settings=settings) as compose:
        keys = ("run", "--rm", "-T", "--no-deps", "-v", f"{compose.folder}:/keys", "--user", "0:0",
                "--entrypoint", "/opt/baton/baton", "model", "keys")  # fmt: skip
        said = compose(*keys, "new", "--tenant", "me", "--file", "/keys/keys.toml")
        [key] = [word for word in said.split() if word.startswith("bt-")]
        (compose.folder / "keys.toml").chmod(0o644)
        compose("up", "-d", "--wait")
        check_keys_are_asked_for(compose, key)


def try_tls() -> None:
    """The same cluster with certificates: answers over HTTPS and gRPC with TLS, and only there."""
    with Compose("compose.yaml", "compose.tls.yaml", project=f"{PROJECT}-tls") as compose:
        compose("up", "-d", "--wait")
        ca_pem = compose("exec", "-T", "router", "cat", "/certs/ca.crt").encode()
        door = compose.door(ca_pem=ca_pem)
        _ask(door)
        check_plain_is_refused(door)
        check_confinement(compose)
        check_doors(compose)
        # A router's own certificate is not good for asking workers how blocks get across.
        report = compose("run", "--rm", "-T", "operator")
        assert report.rstrip().endswith("0 failed"), report
        ask_doctor(compose, services=("decode",), worker=("--grpc-port", "50052"))


def try_ranks() -> None:
    """A decode worker whose ranks are two containers loses one, then the other, under load."""
    settings = {"BATON_DTYPE": "float32"}
    with Compose("compose.yaml", project=f"{PROJECT}-one-rank", settings=settings) as compose:
        compose("up", "-d", "--wait")
        one_rank = stream_many(compose.door())
    files = ("compose.yaml", "compose.ranks.yaml")
    with Compose(*files, project=f"{PROJECT}-ranks", settings=settings) as compose:
        compose("up", "-d", "--wait")
        _check_alike(one_rank, stream_many(compose.door()))
        for service in ("decode-host-1", "decode"):
            [victim] = compose.containers(service)
            replays = num_replays(compose.door())
            answers = stream_many(compose.door(), partial(_end_program, victim))
            _check_alike(one_rank, answers)
            moved = num_replays(compose.door()) - replays
            print(f"  {answers.num_running} were being written, {moved} went on elsewhere")
            assert moved == answers.num_running > 1
            # Docker starts both again, and they find each other.
            compose("up", "-d", "--wait", "--no-recreate")
            _check_alike(one_rank, stream_many(compose.door()))


def _end_program(container: str) -> None:
    """Kill a container's program as the kernel does, so that Docker starts it again."""
    pid = int(docker("inspect", "--format", "{{.State.Pid}}", container))
    print(f"$ kill -9 {pid} ({container})", flush=True)
    os.kill(pid, signal.SIGKILL)


def _check_alike(one_rank: Answers, ranks: Answers) -> None:
    """Greedy answers are equal, and most sampled ones.

    Ranks in two containers add up in another order, and compute with PyTorch, whose sums depend on
    the rows beside them: now and then a sampled token is another one.
    """
    pairs = list(zip(one_rank.token_ids, ranks.token_ids, strict=True))
    equal = [one == two for one, two in pairs]
    print(f"  {sum(equal)} of {len(pairs)} answers are those of one rank", flush=True)
    assert all(equal[::2]), "a greedy answer is another one"
    assert sum(equal) >= len(pairs) - 3, "too many sampled answers are others"


def try_two_hosts(address: str) -> None:
    """Two projects that know of each other what two machines would; both are at `address`."""
    first = {"HOST_ADDRESS": address, "PREFILL_REPLICAS": "0", "BATON_LOCAL_PREFILL_THRESHOLD": "0",
             "BATON_PLACEMENT": "disaggregated"}  # fmt: skip
    second = {"HOST_ADDRESS": address, "FIRST_HOST": address,
              "WORKER_PORT": "50071", "TRANSFER_PORT": "50072"}  # fmt: skip
    with Compose("compose.yaml", "compose.first-host.yaml",
                 project=f"{PROJECT}-one", settings=first) as one:  # fmt: skip
        one("up", "-d", "--wait")
        names = ("cluster-token", "redis-password")
        secrets = {name: one("exec", "-T", "router", "cat", f"/secrets/{name}") for name in names}
        project = f"{PROJECT}-two"
        with Compose("compose.second-host.yaml", project=project, settings=second) as two:
            for name, text in secrets.items():
                two.put(name, text)
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


def _two_decode_workers(compose: Compose) -> None:
    compose("up", "-d", "--wait", "--no-recreate", "--scale", "decode=2")
    assert len(compose.containers("decode")) == 2


def _lose(compose: Compose, command: str, service: str, quiet: Answers) -> None:
    """Kill or stop a container while many answers are written; then have it back."""
    door = compose.door()
    candidates = compose.containers(service)
    replays = num_replays(door)
    victim = ""

    def event() -> None:
        nonlocal victim
        # The other one may have nothing to do.
        victim = max(candidates, key=num_running) if service == "decode" else candidates[0]
        print(f"$ docker {command} {victim}", flush=True)
        docker(command, victim)

    answers = stream_many(door, event)
    assert answers.token_ids == quiet.token_ids, f"{command} of {service} changed an answer"
    assert answers.num_running > 1, "answers were too short to be in the middle of them"
    print(f"  {len(answers.token_ids)} of {len(quiet.token_ids)} answers complete and equal, "
          f"{answers.num_running} were being written", flush=True)  # fmt: skip
    if command == "stop":
        code = docker("inspect", "--format", "{{.State.ExitCode}}", victim).strip()
        assert code == "0", f"{victim} ended with {code}"
    if service != "router":
        print(f"  {num_replays(door) - replays} went on elsewhere", flush=True)
    if (command, service) == ("kill", "decode"):
        assert num_replays(door) > replays, "the worker that was killed had nothing to do"
    _two_decode_workers(compose)


def _look_at_prometheus(door: Door, prometheus: str) -> None:
    """Under load it watches every process, evaluates every rule, and has data for every panel."""
    deadline = time.monotonic() + WATCH_S
    while True:
        stream_many(door)
        missing = {
            "panels without data": empty_panels(DASHBOARDS, prometheus),
            "rules not loaded": unloaded_rules(RULES, prometheus),
            "not watched": [name for name, n in WATCHED.items() if watched(prometheus)[name] < n],
        }
        if not any(missing.values()) or time.monotonic() > deadline:
            break
    assert not any(missing.values()), missing
    print(f"  {num_panels(DASHBOARDS)} panels have data, {len(rule_names(RULES))} rules are "
          f"evaluated, watched are {dict(watched(prometheus))}", flush=True)  # fmt: skip


def _look_at_grafana(grafana: str) -> None:
    """It has our dashboards, and its data source answers what they ask."""
    found = httpx.get(f"{grafana}/api/search", params={"type": "dash-db"}, timeout=30)
    uids = {dashboard["uid"] for dashboard in found.raise_for_status().json()}
    assert uids == {json.loads(path.read_text())["uid"] for path in DASHBOARDS.glob("*.json")}
    source = f"{grafana}/api/datasources/proxy/uid/baton-prometheus"
    empty = empty_panels(DASHBOARDS, source)
    assert not empty, f"panels without data in Grafana: {empty}"
    print(f"  Grafana has {len(uids)} dashboards, and data for each panel", flush=True)


def main() -> int:
    """Exit code 0 if all went well."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--observability",
        default="",
        metavar="SERVICES",
        help="also these of that profile, e.g. prometheus,grafana,otel-collector, and its panels",
    )
    parser.add_argument(
        "--ranks",
        action="store_true",
        help="also with compose.ranks.yaml; kills programs of containers, which needs root",
    )
    parser.add_argument("--only", action="append", help="this trial; may be given more than once")
    parser.add_argument("--tls", action="store_true", help="also with compose.tls.yaml")
    parser.add_argument(
        "--two-hosts",
        metavar="ADDRESS",
        help="also two projects that reach each other at this address of this machine, e.g. that "
        "of the bridge docker0",
    )
    options = parser.parse_args()
    observability = [name for name in options.observability.split(",") if name]
    trials: dict[str, Callable[[], None]] = {
        "plain": lambda: try_plain(observability),
        "settings": try_settings,
        "open": try_open,
    }
    if options.ranks:
        trials["ranks"] = try_ranks
    if options.tls:
        trials["tls"] = try_tls
    if options.two_hosts:
        trials["two hosts"] = lambda: try_two_hosts(options.two_hosts)
    if unknown := set(options.only or trials) - set(trials):
        parser.error(
            f"--only: no trial {', '.join(sorted(unknown))}; there are {', '.join(trials)}"
        )
    chosen = {name: trial for name, trial in trials.items() if name in (options.only or trials)}
    remove_images()
    try:
        return 1 if failed(chosen) else 0
    finally:
        remove_images()


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
