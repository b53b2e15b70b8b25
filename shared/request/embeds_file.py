"""A client's embeddings: base64 of what `torch.save` writes of a tensor.

Read as data, without torch: nothing of a client's pickle is run, and nothing is allocated but what
its own bytes hold.
"""

from __future__ import annotations

import base64
import binascii
import io
from typing import TYPE_CHECKING, Any

import numpy as np

from shared.errors import InvalidRequestError
from shared.pickled.archive import ARCHIVE_ERRORS, Archive
from shared.pickled.program import Record, kind_of
from shared.request.prompt_embeds import PARAM, EmbeddingRows, EmbedsDtype

if TYPE_CHECKING:
    from shared.pickled.archive import Place

#: Far more than the pickle of a tensor, and the entries of its archive.
_MAX_PROGRAM_BYTES, _MAX_ENTRIES = 2**14, 64
#: What every entry of an archive has.
_ENTRY_MARK = b"PK\x01\x02"
_MAX_DIMENSIONS = 3
#: By dtype as safetensors spells it: how numpy holds it, and what rows have.
_DTYPES = {
    "F64": ("<f8", EmbedsDtype.FLOAT32),
    "F32": ("<f4", EmbedsDtype.FLOAT32),
    "F16": ("<f2", EmbedsDtype.FLOAT16),
    "BF16": ("<u2", EmbedsDtype.BFLOAT16),
}


def read_embeds(encoded: str, *, param: str = PARAM) -> EmbeddingRows:
    """Return the rows of a tensor [num_rows, width], or [1, num_rows, width].

    float64 is rounded to float32.

    Raises:
        InvalidRequestError: these are no rows; `param` names the field.
    """
    try:
        raw = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise _wrong(param, f"is no base64: {error}") from error
    try:
        place = _place(raw)
    except ARCHIVE_ERRORS as error:
        reason = str(error)[:200] or type(error).__name__
        raise _wrong(param, f"is no tensor that torch.save wrote: {reason}") from error
    if place.dtype not in _DTYPES:
        raise _wrong(
            param,
            f"must be of float32, float16, bfloat16 or float64, not {place.record.kind[:64]}",
        )
    held_as, dtype = _DTYPES[place.dtype]
    numbers = _strided(raw, place, held_as)
    if numbers.ndim == _MAX_DIMENSIONS and numbers.shape[0] == 1:
        numbers = numbers[0]
    if numbers.ndim != 2 or not numbers.size:
        raise _wrong(param, f"must have the shape [tokens, hidden size], not {list(place.shape)}")
    if held_as == "<f8":
        with np.errstate(over="ignore"):  # an infinite number is refused below
            numbers = numbers.astype("<f4")
    return EmbeddingRows(dtype, numbers.shape[1], numbers.tobytes())


def _place(raw: bytes) -> Place:
    """Return where the tensor is.

    Raises:
        ARCHIVE_ERRORS: there is none.
    """
    if raw.count(_ENTRY_MARK) > _MAX_ENTRIES:
        raise ValueError("its archive has too many entries")
    archive = Archive(io.BytesIO(raw), max_program_bytes=_MAX_PROGRAM_BYTES)
    record = archive.content
    if not isinstance(record, Record):
        raise ValueError(f"it holds a {kind_of(record)}")
    if len(record.shape) > _MAX_DIMENSIONS or len(record.strides) != len(record.shape):
        raise ValueError(f"it has {len(record.shape)} dimensions")
    return archive.place("prompt_embeds", record)


def _strided(raw: bytes, place: Place, held_as: str) -> np.ndarray[Any, np.dtype[Any]]:
    """Return the tensor's numbers, which lie within its storage."""
    stored = np.frombuffer(raw, held_as, place.num_stored, place.start)
    own = stored[place.record.offset :]
    strides = [step * stored.itemsize for step in place.record.strides]
    return np.lib.stride_tricks.as_strided(own, place.shape, strides, writeable=False)


def _wrong(param: str, what: str) -> InvalidRequestError:
    return InvalidRequestError(f"{param} {what}", param=param)
