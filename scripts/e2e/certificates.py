"""Certificates for a release of the chart, as secrets: what cert-manager would make."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from cli.security.certs import make_certificates
from scripts.e2e.kubernetes import kubectl
from shared.rpc.tls.identity import PeerRole

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROLES = (PeerRole.ROUTER, PeerRole.PREFILL, PeerRole.DECODE, PeerRole.CLIENT)


@contextmanager
def given_certificates(release: str, *, hosts: Sequence[str]) -> Iterator[None]:
    """One CA's, under the names that the chart expects, while the block runs.

    `hosts`: names of the Services that are called by name, the router's and Redis'.
    """
    with tempfile.TemporaryDirectory() as path:
        folder = make_certificates(Path(path) / "certs", hosts=hosts)
        pairs = {role.value: (folder.cert(role), folder.key(role)) for role in ROLES}
        pairs["redis"] = folder.redis
        for role, (certificate, key) in pairs.items():
            kubectl("create", "secret", "generic", f"{release}-{role}-tls",
                    f"--from-file=tls.crt={certificate}", f"--from-file=tls.key={key}",
                    f"--from-file=ca.crt={folder.ca}", quiet=True)  # fmt: skip
    try:
        yield
    finally:
        kubectl("delete", "secret", *(f"{release}-{role}-tls" for role in pairs))
