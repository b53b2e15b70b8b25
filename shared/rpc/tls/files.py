"""Follows a process's certificate files, so that new ones are in use without a restart."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import structlog

from shared.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.rpc.tls.certificates import Certificates
    from shared.rpc.tls.identity import Identity, PeerRole
    from shared.rpc.tls.settings import TlsSettings

log = structlog.get_logger(__name__)

#: Minimum interval of checks of the files: faster connections share a check.
LOOK_EVERY_S = 1.0
_EXPIRES_SOON = timedelta(days=7)
_Stamp = tuple[tuple[int, int, int], ...]


class CertificateFiles:
    """The last valid set of certificates. May be used from any thread."""

    def __init__(
        self,
        settings: TlsSettings,
        *,
        look_every_s: float = LOOK_EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read the files.

        Raises:
            ConfigError: they cannot be used; see `read_certificates`.
        """
        self.settings = settings
        self._look_every_s = look_every_s
        self._clock = clock
        self._lock = threading.Lock()
        self._stamp = self._look()
        self._certificates = self._read()
        self._looked_at = clock()
        self._tell("tls_certificate_loaded")

    def identity(self, role: PeerRole) -> Identity:
        """Return the identity of this process in this role.

        Raises:
            ConfigError: the certificate is not for this role.
        """
        known = self.current().identities
        for identity in known:
            if identity.role is role:
                return identity
        names = ", ".join(identity.uri for identity in known) or "none"
        raise ConfigError(
            f"--tls-cert {self.settings.tls_cert} is not for a {role}: it needs a URI "
            f"baton://CLUSTER/{role}/NAME among its alternative names, and of those it has: {names}"
        )

    def current(self) -> Certificates:
        """Return the newest certificates. Incomplete or wrong files change nothing."""
        with self._lock:
            now_s = self._clock()
            if now_s - self._looked_at >= self._look_every_s:
                self._looked_at = now_s
                stamp = self._look()
                if stamp != self._stamp:
                    self._renew(stamp)
            return self._certificates

    def _read(self) -> Certificates:
        # Certificate libraries take 0.1 s to load, and clusters without TLS do not need them.
        from shared.rpc.tls.certificates import read_certificates  # noqa: PLC0415

        return read_certificates(self.settings)

    def _renew(self, stamp: _Stamp) -> None:
        try:
            certificates = self._read()
        except ConfigError as error:
            # Perhaps only one of them has been written yet. The stamp stays, so the files are read
            # again.
            log.warning("tls_certificate_not_usable", error=str(error), kept_until=self._until())
            return
        self._stamp = stamp
        if certificates != self._certificates:
            self._certificates = certificates
            self._tell("tls_certificate_renewed")

    def _tell(self, event: str) -> None:
        names = [identity.uri for identity in self._certificates.identities]
        log.info(event, path=str(self.settings.tls_cert), names=names, valid_until=self._until())
        if self._certificates.not_after - datetime.now(UTC) < _EXPIRES_SOON:
            log.warning("tls_certificate_expires_soon", valid_until=self._until())

    def _until(self) -> str:
        return self._certificates.not_after.isoformat()

    def _look(self) -> _Stamp:
        found = []
        for path in (self.settings.tls_cert, self.settings.tls_key, self.settings.tls_ca):
            try:
                status = path.stat() if path is not None else None
            except OSError:
                status = None
            if status is None:
                found.append((0, 0, 0))
            else:
                found.append((status.st_mtime_ns, status.st_size, status.st_ino))
        return tuple(found)


def open_certificates(settings: TlsSettings, role: PeerRole) -> CertificateFiles | None:
    """Return the files of a service of this role; None without TLS.

    Raises:
        ConfigError: they cannot be used, or are not for this role.
    """
    if settings.tls_cert is None:
        return None
    files = CertificateFiles(settings)
    files.identity(role)
    return files
