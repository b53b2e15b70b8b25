"""`--ssl-certfile` and its like: a certificate of any CA, for the HTTP port alone."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

import httpx
import pytest

from services.router.checks import check_router
from services.router.config import RouterConfig
from services.router.doors.http_server import HttpServer
from shared.config import load_config
from shared.errors import ConfigError
from shared.rpc.tls.https import open_https
from shared.rpc.tls.identity import PeerRole
from tests.fakes.router.openai_api import OpenAIApi
from tests.fakes.security.certificates import authority, issue

if TYPE_CHECKING:
    from pathlib import Path

    from shared.rpc.tls.settings import TlsSettings

pytestmark = pytest.mark.integration


@pytest.fixture
def files(tmp_path: Path) -> TlsSettings:
    # Its identity is of no interest here.
    return issue(authority(), tmp_path / "made", PeerRole.ROUTER, cluster="another")


def config(model: Path, *flags: object) -> RouterConfig:
    words = ["--model", str(model), *map(str, flags)]
    return load_config(RouterConfig, words, prog="test", environ={})


def client(files: TlsSettings, shown: TlsSettings | None = None) -> httpx.AsyncClient:
    context = ssl.create_default_context(cafile=files.tls_ca)
    if shown is not None:
        assert shown.tls_cert is not None
        context.load_cert_chain(shown.tls_cert, shown.tls_key)
    return httpx.AsyncClient(verify=context, trust_env=False)


async def test_http_is_encrypted_with_it_and_follows_it(files: TlsSettings, tmp_path: Path) -> None:
    flags = ("--ssl-certfile", files.tls_cert, "--ssl-keyfile", files.tls_key)
    settings = config(tmp_path, *flags)
    assert not settings.tls.is_on
    server = HttpServer(OpenAIApi().app, drain_grace_s=1.0, tls=open_https(settings.https))
    await server.start("127.0.0.1", 0)
    try:
        url = f"https://127.0.0.1:{server.port}/live"
        async with client(files) as http:
            assert (await http.get(url)).status_code == 200
        renewed = issue(authority("new"), tmp_path / "new", PeerRole.ROUTER)
        async with client(renewed) as http:
            with pytest.raises(httpx.ConnectError):
                await http.get(url)
            for old, new in ((files.tls_cert, renewed.tls_cert), (files.tls_key, renewed.tls_key)):
                assert old is not None
                assert new is not None
                new.replace(old)
            assert (await http.get(url)).status_code == 200
    finally:
        await server.stop()


@pytest.mark.parametrize(("asked", "status"), [("0", 200), ("1", 200), ("2", None)])
async def test_clients_are_asked_as_the_number_says(
    files: TlsSettings, tmp_path: Path, asked: str, status: int | None
) -> None:
    ca = authority("of clients")
    ours = issue(ca, tmp_path / "ours", PeerRole.CLIENT)
    flags = ("--ssl-certfile", files.tls_cert, "--ssl-keyfile", files.tls_key)
    settings = config(tmp_path, *flags, "--ssl-ca-certs", ours.tls_ca, "--ssl-cert-reqs", asked)
    server = HttpServer(OpenAIApi().app, drain_grace_s=1.0, tls=open_https(settings.https))
    await server.start("127.0.0.1", 0)
    try:
        url = f"https://127.0.0.1:{server.port}/live"
        async with client(files, ours) as http:
            assert (await http.get(url)).status_code == 200
        async with client(files) as http:
            if status is None:
                with pytest.raises(httpx.TransportError):
                    await http.get(url)
            else:
                assert (await http.get(url)).status_code == status
    finally:
        await server.stop()


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("--ssl-keyfile", "k"), "need --https-cert"),
        (("--ssl-certfile", "none.pem"), r"--https-cert: none\.pem cannot be used"),
        (("--ssl-certfile", "c", "--ssl-cert-reqs", "2"), "needs --https-ca"),
        (("--ssl-certfile", "c", "--ssl-cert-reqs", "3"), "--https-client-certs has a bad value"),
    ],
)
def test_what_cannot_be_used_is_found_before_the_start(
    tmp_path: Path, flags: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        check_router(config(tmp_path, *flags))
