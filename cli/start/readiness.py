"""Queries of a starting cluster. A process that is not up yet raises no error."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError

import grpc

from baton.v1 import directory_pb2, directory_pb2_grpc
from cli.errors import CommandError
from cli.security.access import open_channel, open_http, open_unverified_http

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cli.security.access import Secure

TIMEOUT_S = 2.0


class ReadinessProbe:
    """One router: its HTTP readiness, and the joined workers over gRPC."""

    def __init__(
        self,
        *,
        url: str,
        directory: str,
        secure: Secure | None = None,
        verifies_http: bool = True,
        metadata: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Make a probe. `metadata` is sent with calls to the directory.

        `verifies_http`: whether the certificate of HTTP must be of the CA, and of this address.
        """
        self._metadata = tuple(metadata)
        self._advice_on_tls = (
            ""
            if secure is None
            else "; with TLS, --grpc-port its --own-grpc-port, and --tls-cert an operator's"
        )
        self._directory = directory
        self._url = url
        self._opener = open_http(secure) if verifies_http else open_unverified_http()
        self._channel = open_channel(directory, secure)
        self._stub = directory_pb2_grpc.DirectoryStub(self._channel)

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def missing(self, *, is_meant: Callable[[str], bool] = lambda _: True) -> Sequence[str] | None:
        """Return what the router still lacks; empty when it serves, None when it is not up.

        `is_meant` returns whether the router lacks what a note says for good: it serves without.
        """
        try:
            with self._opener.open(f"{self._url}/ready", timeout=TIMEOUT_S) as answer:
                notes = _listed(answer.read(), "notes")
                return tuple(note for note in notes if not is_meant(note))
        except HTTPError as error:
            with error:
                return _listed(error.read(), "reasons") or ("the router is not ready",)
        except OSError:
            return None

    def workers(self) -> Sequence[directory_pb2.WorkerStatus]:
        """Return the joined workers.

        Raises:
            CommandError: the directory refuses calls without its token.
        """
        return tuple(self._listed().workers)

    def refused(self) -> Sequence[directory_pb2.RefusedWorker]:
        """Return live workers whose records the router refuses. Raises as `workers`."""
        return tuple(self._listed().refused)

    def _listed(self) -> directory_pb2.ListWorkersResponse:
        request = directory_pb2.ListWorkersRequest()
        try:
            return self._stub.ListWorkers(request, timeout=TIMEOUT_S, metadata=self._metadata)
        except grpc.RpcError as error:
            # The error of a stub is also the call; the types have only one of them.
            call: Any = error
            if call.code() is grpc.StatusCode.UNAUTHENTICATED:
                raise CommandError(
                    f"the directory at {self._directory} says: {call.details()}",
                    advice="give --cluster-token the file that its router has"
                    + self._advice_on_tls,
                ) from error
            return directory_pb2.ListWorkersResponse()


def _listed(body: bytes, name: str) -> Sequence[str]:
    try:
        content: Any = json.loads(body)
        return tuple(str(each) for each in content[name])
    except (ValueError, KeyError, TypeError):
        return ()
