"""Settings of TLS that do not go together are refused before anything starts."""

from __future__ import annotations

import pytest

from services.router.config import RouterConfig
from shared.config import load_config
from shared.errors import ConfigError
from shared.worker.config import WorkerConfig

FILES = ("--tls-cert", "/c", "--tls-key", "/k", "--tls-ca", "/a")
ROUTER = ("--model", "/m")
WORKER = (*ROUTER, "--name", "a", "--directory", "b:1")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (FILES[:4], "give --tls-ca, too"),
        (FILES[4:], "give --tls-cert, too"),
        (FILES, "set --own-grpc-port"),
        (("--tls-client-certs",), "--tls-client-certs needs"),
    ],
)
def test_a_router_says_what_is_missing(flags: tuple[str, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_config(RouterConfig, [*ROUTER, *flags], prog="router", environ={})


@pytest.mark.parametrize(
    "flags", [("--own-grpc-port", "7"), ("--redis-url", "redis://a"), ("--tls-client-certs",)]
)
def test_a_router_that_workers_can_join_starts(flags: tuple[str, ...]) -> None:
    config = load_config(RouterConfig, [*ROUTER, *FILES, *flags], prog="router", environ={})
    assert str(config.tls.tls_ca) == "/a"


@pytest.mark.parametrize(
    ("flags", "encrypted"),
    [
        ((), False),
        (FILES, True),
        (("--transfer-encryption", "on"), True),
        ((*FILES, "--transfer-encryption", "off"), False),
    ],
)
def test_transfers_are_encrypted_where_tls_is(flags: tuple[str, ...], encrypted: bool) -> None:
    config = load_config(WorkerConfig, [*WORKER, *flags], prog="decode", environ={})
    assert config.encrypts_transfers is encrypted


def test_the_files_can_come_from_the_environment() -> None:
    environ = {"BATON_TLS_CERT": "/c", "BATON_TLS_KEY": "/k", "BATON_TLS_CA": "/a"}
    config = load_config(WorkerConfig, WORKER, prog="decode", environ=environ)
    assert str(config.tls.tls_key) == "/k"
