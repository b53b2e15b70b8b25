"""How the command reaches services whose certificates do not have their addresses."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import grpc
import pytest
from grpc_health.v1 import health, health_pb2_grpc

from cli.containers.probe import probe_worker
from cli.errors import CommandError
from cli.security.access import Secure
from cli.security.certs import SERVICE_NAME, make_certificates
from shared.rpc.tls.identity import PeerRole

if TYPE_CHECKING:
    from pathlib import Path

#: This machine, by an address that `baton certs` puts into no certificate.
HOST = "127.0.0.2"


def test_a_certificate_may_name_the_service_instead_of_its_address(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path)
    role = PeerRole.DECODE
    pair = certificates.key(role).read_bytes(), certificates.cert(role).read_bytes()
    server = grpc.server(ThreadPoolExecutor(1))
    health_pb2_grpc.add_HealthServicer_to_server(health.HealthServicer(), server)
    port = server.add_secure_port(f"{HOST}:0", grpc.ssl_server_credentials([pair]))
    server.start()
    try:
        named = Secure(certificates.ca, server_name=SERVICE_NAME)
        assert probe_worker(HOST, port, named) == "SERVING"
        with pytest.raises(CommandError, match="UNAVAILABLE"):
            probe_worker(HOST, port, Secure(certificates.ca))
    finally:
        server.stop(None).wait()
