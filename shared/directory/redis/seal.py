"""Seals on workers' records in Redis: write access to Redis is not membership of the cluster.

A router calls the address of a record with the cluster's token, so it must know that a holder of
the token has written the record. The seal is an HMAC, under the token, of the record's bytes, the
worker's name and incarnation, and the time. A worker makes a new one with each heartbeat, so the
record of a lost worker cannot be reused for longer than MAX_AGE_S.
"""

from __future__ import annotations

import hashlib
import struct
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.identity import WorkerId

#: Maximum difference of clocks, and lifetime of a seal. As in Kerberos.
MAX_AGE_S = 300.0
_DOMAIN = b"baton.worker_record.v1\0"
_TIME = struct.Struct(">Q")
_MAC_BYTES = 32


class Secret(Protocol):
    """The shared secret of the holders of the cluster's token. Thread-safe."""

    def sign(self, message: bytes) -> bytes:
        """Return the HMAC-SHA256 of `message`."""
        ...

    def has_signed(self, message: bytes, signature: bytes) -> bool:
        """Return whether a holder of a valid token has made the signature."""
        ...


class SealFault(StrEnum):
    """Reason of a record's refusal: the label of the metric."""

    MISSING = "missing"
    FORGED = "forged"
    STALE = "stale"


class SealError(Exception):
    """The record's seal is not accepted."""

    def __init__(self, fault: SealFault, message: str) -> None:
        super().__init__(message)
        self.fault = fault


class RecordSeals:
    """Makes and checks seals."""

    def __init__(self, secret: Secret, *, clock: Callable[[], float] = time.time) -> None:
        self._secret = secret
        self._clock = clock

    def make(self, worker: WorkerId, record: bytes) -> bytes:
        """Return a seal made now."""
        made = _TIME.pack(int(self._clock() * 1000))
        return made + self._secret.sign(_message(worker, record, made))

    def open(self, worker: WorkerId, record: bytes, seal: bytes) -> float:
        """Return the Unix time at which the seal was made.

        Raises:
            SealError: no holder of the token has made it for this record.
        """
        if not seal:
            raise SealError(
                SealFault.MISSING, "its record has no seal: it has no cluster token, or is too old"
            )
        made, mac = seal[: _TIME.size], seal[_TIME.size :]
        if len(mac) != _MAC_BYTES or not self._secret.has_signed(
            _message(worker, record, made), mac
        ):
            raise SealError(SealFault.FORGED, "its record's seal is not of this cluster's token")
        return float(_TIME.unpack(made)[0]) / 1000

    def check_age(self, made_s: float) -> None:
        """Check the age of a seal.

        Raises:
            SealError: it has expired, or its time is in the future.
        """
        age_s = self._clock() - made_s
        if abs(age_s) > MAX_AGE_S:
            raise SealError(
                SealFault.STALE,
                f"its record's seal is {age_s:.0f} s old: is it gone, or does its clock differ?",
            )


def _message(worker: WorkerId, record: bytes, made: bytes) -> bytes:
    parts = (worker.name.encode(), worker.incarnation.encode(), made, record)
    return _DOMAIN + b"".join(hashlib.sha256(part).digest() for part in parts)
