"""The error tree. Every leaf has one gRPC and one HTTP status, in shared/rpc/status.py.

BatonError
├── InvalidRequestError        the caller's fault; names the parameter
│   ├── UnsupportedError       understood, and not offered here
│   └── AdapterError           an adapter's folder cannot be used; names the file or tensor
├── AuthenticationError        no key, or a wrong one
├── ModelNotFoundError         the model is not served here
├── PayloadTooLargeError       body or prompt over a limit
├── OverloadedError            refused before any work was done; carries retry_after_s
├── UnavailableError           nothing wrong with the request; another try may succeed
│   ├── NoWorkerError          no live worker of the needed role
│   ├── GenerationGoneError    no worker is left with the weights that an answer began with
│   ├── DrainingError          this worker takes no new work
│   ├── AdapterNotLoadedError  this worker neither has the adapter nor can load it
│   └── WorkerLostError        the worker died or stopped answering
│       ├── WorkerSilentError  its connection stands, and nothing comes
│       └── RankError          a rank of its group died or is late; names the rank
├── DeadlineError              the request's or a step's time ran out
├── RequestCancelledError      the caller went away
├── IncompatiblePeerError      two workers must not exchange KV; names the field that differs
├── TransferError              a KV transfer did not complete; carries a reason
├── UnknownIncarnationError    the directory does not know this worker's incarnation: register again
├── SequenceGapError           the directory missed an update: send a snapshot
├── ConfigError                start-up only: a setting is unknown or wrong
├── ModelLoadError             start-up only: the checkpoint cannot be used
└── InternalError              a bug
"""

from __future__ import annotations

from enum import StrEnum


class BatonError(Exception):
    """Base of every error that Baton raises on purpose. The message carries the ids involved."""


class InvalidRequestError(BatonError):
    """The request cannot be served as written. `param` names the offending field."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class UnsupportedError(InvalidRequestError):
    """A known feature that this deployment does not offer."""


class AdapterError(InvalidRequestError):
    """An adapter cannot be used with this base. Names the folder, and the key or tensor."""

    def __init__(self, message: str, *, param: str | None = "lora_path") -> None:
        super().__init__(message, param=param)


class AuthenticationError(BatonError):
    """No API key, or one that is not known."""


class ModelNotFoundError(BatonError):
    """The requested model is not served here."""


class PayloadTooLargeError(BatonError):
    """A body, prompt or list is over its limit. `param` names the field, if it is one."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class RefusalReason(StrEnum):
    """Why a request was refused before any work was done; the label of a metric."""

    OTHER = "other"
    QUEUE_FULL = "queue_full"
    QUEUE_TIMEOUT = "queue_timeout"
    DISPLACED = "displaced"
    EXPECTED_TTFT = "expected_ttft"
    EXPECTED_ITL = "expected_itl"
    TENANT_REQUESTS = "tenant_requests"
    TENANT_TOKENS = "tenant_tokens"
    TENANT_GRAMMARS = "tenant_grammars"
    WORKER_FULL = "worker_full"


class OverloadedError(BatonError):
    """Refused before any work was done."""

    def __init__(
        self,
        message: str,
        *,
        retry_after_s: float = 1.0,
        reason: RefusalReason = RefusalReason.OTHER,
    ) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.reason = reason


class UnavailableError(BatonError):
    """Nothing is wrong with the request; trying again may succeed."""


class NoWorkerError(UnavailableError):
    """No live worker of the needed role."""


class GenerationGoneError(UnavailableError):
    """No worker is left with the weights that an answer began with."""


class DrainingError(UnavailableError):
    """The worker is finishing what it has and takes no new work."""


class AdapterNotLoadedError(UnavailableError):
    """This worker neither has the request's adapter nor can load it; another may."""


class WorkerLostError(UnavailableError):
    """A worker died or stopped answering in the middle of a request."""


class WorkerSilentError(WorkerLostError):
    """A worker's connection stands, and nothing came over it for too long."""


class RankError(WorkerLostError):
    """A rank of a worker's group died, left, or did not come in time: the whole group is lost.

    `rank` is the one that is missing; None in an error that came over the wire.
    """

    def __init__(self, message: str, *, rank: int | None = None) -> None:
        super().__init__(message)
        self.rank = rank


class DeadlineError(BatonError):
    """The time allowed for the request, or for one step of it, ran out."""


class RequestCancelledError(BatonError):
    """The caller cancelled, or its connection is gone."""


class IncompatiblePeerError(BatonError):
    """Two workers must not exchange KV blocks."""

    def __init__(self, field: str, *, ours: object, theirs: object, peer: str = "peer") -> None:
        super().__init__(f"{peer} is incompatible: {field} is {theirs!r} there and {ours!r} here")
        self.field = field

    @classmethod
    def relayed(cls, field: str, message: str) -> IncompatiblePeerError:
        """The peer's own refusal, as it came over the wire."""
        error = cls.__new__(cls)
        Exception.__init__(error, message)
        error.field = field
        return error


class TransferFailure(StrEnum):
    """Why a transfer did not complete; the label of a metric."""

    UNKNOWN_TICKET = "unknown_ticket"
    LATE = "late"
    DUPLICATE = "duplicate"
    CORRUPT = "corrupt"
    OVERSIZED = "oversized"
    OUT_OF_RANGE = "out_of_range"
    INCOMPLETE = "incomplete"
    LAYOUT_MISMATCH = "layout_mismatch"
    ABORTED = "aborted"
    PEER_LOST = "peer_lost"
    TIMEOUT = "timeout"


class TransferError(BatonError):
    """A KV transfer did not complete. None of its blocks may be used."""

    def __init__(self, reason: TransferFailure, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.detail = message


class UnknownIncarnationError(BatonError):
    """The directory does not know this incarnation of the worker; it must register again."""


class SequenceGapError(BatonError):
    """The directory missed an update of this worker; it must send a snapshot."""


class ConfigError(BatonError):
    """A setting is unknown or has a bad value. Start-up stops with this message."""


class ModelLoadError(BatonError):
    """A checkpoint cannot be used. The message names the file, and the tensor if there is one."""


class InternalError(BatonError):
    """A bug in Baton."""
