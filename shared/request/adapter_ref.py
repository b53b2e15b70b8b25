"""The LoRA adapter that a request is computed with, as every process names it."""

from __future__ import annotations

from dataclasses import dataclass

from baton.v1 import common_pb2
from shared.errors import InvalidRequestError

#: Length of `AdapterRef.digest`.
DIGEST_BYTES = 32
MAX_NAME_CHARS = 512
MAX_PATH_CHARS = 4096


@dataclass(frozen=True, slots=True)
class AdapterRef:
    """An adapter: the name that clients ask for, and the content that it stands for.

    The digest alone decides what is computed and which blocks fit. Two names may have one digest; a
    name may have another digest after a reload.
    """

    name: str
    #: Digest of the adapter's content, `DIGEST_BYTES` long. The name is not part of it.
    digest: bytes
    #: Its folder, as workers see it.
    path: str


def adapter_to_wire(adapter: AdapterRef) -> common_pb2.Adapter:
    """Return the message with all fields."""
    return common_pb2.Adapter(name=adapter.name, digest=adapter.digest, path=adapter.path)


def adapter_from_wire(message: common_pb2.Adapter) -> AdapterRef:
    """Return the adapter of a message.

    Raises:
        InvalidRequestError: the message is malformed.
    """
    if not 0 < len(message.name) <= MAX_NAME_CHARS:
        text = f"an adapter's name must have 1 to {MAX_NAME_CHARS} characters"
        raise InvalidRequestError(text, param="adapter.name")
    if len(message.digest) != DIGEST_BYTES:
        text = f"an adapter's digest must have {DIGEST_BYTES} bytes, not {len(message.digest)}"
        raise InvalidRequestError(text, param="adapter.digest")
    if len(message.path) > MAX_PATH_CHARS:
        text = f"an adapter's path must have at most {MAX_PATH_CHARS} characters"
        raise InvalidRequestError(text, param="adapter.path")
    return AdapterRef(message.name, message.digest, message.path)
