"""A worker that would be open to other machines does not start; nor does such a router."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from services.router.config import RouterConfig
from services.router.security import open_security
from shared.engine.settings.model import ModelSettings
from shared.errors import ConfigError
from shared.rpc.exposure import AccessSettings
from shared.worker.checks import require_guarded_doors
from shared.worker.config import WorkerConfig
from tests.fakes.security.keys import cluster_token_file, keys_on_disk

TOKEN = AccessSettings(cluster_token=Path("token"))
ANYTHING = AccessSettings(insecure_bind=True)
EVERYWHERE = ("0.0.0.0", "10.1.2.3", "::", "")


def worker(**settings: Any) -> WorkerConfig:
    model = ModelSettings(model=Path("m"))
    return WorkerConfig(model=model, name="w", directory=("127.0.0.1:1",), **settings)


def refusal_of(config: WorkerConfig) -> str:
    with pytest.raises(ConfigError) as error:
        require_guarded_doors(config)
    return str(error.value)


def test_defaults_listen_on_this_machine_alone() -> None:
    require_guarded_doors(worker(metrics_port=9))
    open_security(RouterConfig(model=Path("m")))


@pytest.mark.parametrize("host", EVERYWHERE)
def test_a_worker_is_exposed_only_with_a_token(host: str) -> None:
    assert "--cluster-token" in refusal_of(worker(host=host))
    require_guarded_doors(worker(host=host, access=TOKEN))
    require_guarded_doors(worker(host=host, access=ANYTHING, metrics_port=9))


def test_a_workers_metrics_are_opened_with_a_flag_of_their_own() -> None:
    config = worker(host="0.0.0.0", access=TOKEN, metrics_port=9)
    assert "--metrics-port would be open" in refusal_of(config)
    require_guarded_doors(replace(config, access=replace(TOKEN, open_metrics=True)))


@pytest.mark.parametrize("flag", ["kv_events_endpoint", "kv_events_replay_endpoint"])
def test_a_workers_events_stay_on_this_machine(flag: str) -> None:
    local = {"kv_events_endpoint": "tcp://127.0.0.1:5557"}
    require_guarded_doors(worker(access=TOKEN, **(local | {flag: "ipc:///tmp/x"})))
    exposed = worker(access=TOKEN, **(local | {flag: "tcp://*:5557"}))
    assert f"--{flag.replace('_', '-')}" in refusal_of(exposed)
    require_guarded_doors(replace(exposed, access=ANYTHING))


@pytest.mark.parametrize("host", EVERYWHERE)
def test_a_router_is_exposed_only_with_keys_and_a_token(host: str, tmp_path: Path) -> None:
    config = RouterConfig(model=Path("m"), host=host)
    keys, token = keys_on_disk(tmp_path).path, cluster_token_file(tmp_path)
    has_token = AccessSettings(cluster_token=token)
    for settings, flag in (
        ({}, "--api-keys"),
        ({"access": has_token}, "--api-keys"),
        ({"api_keys": keys}, "--cluster-token"),
    ):
        with pytest.raises(ConfigError, match=flag):
            open_security(replace(config, **settings))
    open_security(replace(config, access=ANYTHING))
    security = open_security(replace(config, api_keys=keys, access=has_token))
    assert security.guard() is not None
    assert len(security.files) == 2


def test_keys_without_a_token_would_let_anybody_join_as_a_worker(tmp_path: Path) -> None:
    config = RouterConfig(model=Path("m"), api_keys=keys_on_disk(tmp_path).path)
    with pytest.raises(ConfigError, match="--api-keys needs --cluster-token"):
        open_security(config)
    assert open_security(replace(config, access=ANYTHING)).keys is not None
