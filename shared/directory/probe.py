"""The hash self-check: a worker and the routers must hash the same content equally.

Workers whose hashes differ would never be hit, without any error. So both sides hash a fixed probe
under the worker's own namespace, and a worker with another digest is refused with an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from shared.errors import IncompatiblePeerError, InvalidRequestError
from shared.kv.identity import KVIdentity

if TYPE_CHECKING:
    from shared.directory.base import WorkerRecord

log = structlog.get_logger(__name__)

FIELD = "block_hash"
#: Salt, adapter, ids of one to three bytes, and two blocks: all inputs of block hashes.
_SALT, _ADAPTER = b"probe", b"probe"
_NUM_BLOCKS = 2
_STRIDE = 40_503


def probe_digest(namespace: bytes, block_size: int) -> str:
    """Return the hex digest of the probe's last block in a namespace."""
    tokens = [(number * _STRIDE) % 2**18 for number in range(_NUM_BLOCKS * block_size)]
    identity = KVIdentity(namespace, salt=_SALT, adapter=_ADAPTER)
    return identity.hash_blocks(tokens, block_size)[-1].hex()


def check_probe(record: WorkerRecord) -> None:
    """Check that the worker hashes as this process, or sends no digest.

    Raises:
        IncompatiblePeerError: it hashes differently; the message has both digests.
        InvalidRequestError: its namespace or block size is invalid.
    """
    if not record.probe:
        log.warning("hashes_not_checked", worker=str(record.worker))
        return
    try:
        namespace = bytes.fromhex(record.namespace)
    except ValueError as error:
        raise InvalidRequestError("namespace must be in hex", param="namespace") from error
    if not 0 < record.block_size <= 2**16:
        raise InvalidRequestError("block_size must be over 0", param="block_size")
    ours = probe_digest(namespace, record.block_size)
    if record.probe != ours:
        raise IncompatiblePeerError(FIELD, ours=ours, theirs=record.probe, peer=str(record.worker))
