"""Whether to pack the pieces of one connection, by what pieces took on it.

Nothing is assumed of a network: pieces are sent as they are until the rate is known. They are
packed on trial if packing and sending less, one after the other, would take less time than sending;
and from then on if packed pieces did take less. A few are sent as they are all the same, so that
both figures stay fresh.

Unpacking with a checksum is no slower than the copy with a checksum that plain pieces take
(docs/log/elastic.md), so a trial is not kept back for it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum

#: Smaller pieces take the time of a round trip, packed or not.
LEAST_BYTES = 64 << 10
#: Bytes from which on a rate is known.
_KNOWN_BYTES = 1 << 20
#: Older measurements fade with so many bytes.
_MEMORY_BYTES = 32 << 20
#: Bytes per second on one core beyond the checksum, and packed bytes per byte, as long as nothing
#: was packed.
_USUAL_RATE, _USUAL_SHARE = 6e9, 0.76
#: Packed pieces must gain this share at least: else the processor's time is better spent.
_LEAST_GAIN = 0.03
#: Of packed pieces one in so many is sent as it is.
_REFRESH = 16
#: Pieces that are sent as they are after packing has not paid.
_PAUSE = 256


class PackingMode(StrEnum):
    """A worker's setting."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


@dataclass(slots=True)
class _Rate:
    """Bytes and seconds of recent work; older work fades."""

    num_bytes: float = 0.0
    seconds: float = 0.0

    def add(self, num_bytes: int, seconds: float) -> None:
        keep = max(0.0, 1.0 - num_bytes / _MEMORY_BYTES)
        self.num_bytes = keep * self.num_bytes + num_bytes
        self.seconds = keep * self.seconds + seconds

    def forget(self) -> None:
        self.num_bytes = self.seconds = 0.0

    @property
    def is_known(self) -> bool:
        return self.num_bytes >= _KNOWN_BYTES and self.seconds > 0

    @property
    def seconds_per_byte(self) -> float:
        return self.seconds / self.num_bytes


@dataclass(slots=True)
class _Sent:
    transfer_id: bytes
    num_bytes: int
    began_s: float
    is_packed: bool


class PackingRule:
    """The measurements of one connection. Used on the event loop only."""

    def __init__(self, mode: PackingMode) -> None:
        self._mode = mode
        #: Of unpacked bytes, from the start of reading a piece until it was acknowledged, less the
        #: time in which a piece before it was not yet.
        self._plain, self._packed = _Rate(), _Rate()
        #: Of reading plain pieces and packed ones, up to their checksums; and the packed bytes.
        self._reading, self._packing, self._num_packed = _Rate(), _Rate(), _Rate()
        self._latency_s = 0.0
        self._outstanding: deque[_Sent] = deque()
        self._last_ack_s = 0.0
        self._num_since_plain = 0
        self._pause = 0

    def wants(self, num_bytes: int) -> bool:
        """Return whether to pack the next piece, which has `num_bytes` bytes."""
        if self._mode is not PackingMode.AUTO:
            return self._mode is PackingMode.ON
        if num_bytes < LEAST_BYTES or not self._plain.is_known:
            return False
        if self._pause:
            self._pause -= 1
            return False
        if not self._pays():
            # Another trial later: the content or the load may have changed.
            self._pause = _PAUSE
            for rate in (self._packed, self._packing, self._num_packed):
                rate.forget()
            return False
        self._num_since_plain = (self._num_since_plain + 1) % _REFRESH
        return self._num_since_plain != 0

    def answered(self, seconds: float) -> None:
        """Note how long an answer without any piece took."""
        self._latency_s = min(self._latency_s or seconds, seconds)

    def read(self, num_bytes: int, seconds: float) -> None:
        """Note that reading a plain piece, and its checksum, took `seconds`."""
        self._reading.add(num_bytes, seconds)

    def packed(self, num_bytes: int, num_packed: int, seconds: float) -> None:
        """Note that packing `num_bytes` to `num_packed` took `seconds`, the checksum included."""
        self._packing.add(num_bytes, seconds)
        self._num_packed.add(num_bytes, num_packed)

    def sent(self, transfer_id: bytes, num_bytes: int, began_s: float, *, is_packed: bool) -> None:
        """Note a piece that was queued. began_s: when reading it began."""
        self._outstanding.append(_Sent(transfer_id, num_bytes, began_s, is_packed))

    def acknowledged(self, transfer_id: bytes, num_bytes: int, now_s: float) -> None:
        """Note that the receiver has stored the first such piece that was sent."""
        for piece in self._outstanding:
            if piece.transfer_id == transfer_id and piece.num_bytes == num_bytes:
                break
        else:
            return
        self._outstanding.remove(piece)
        seconds = now_s - max(piece.began_s, self._last_ack_s)
        if piece.began_s > self._last_ack_s:
            seconds -= min(self._latency_s, seconds)
        self._last_ack_s = now_s
        if num_bytes >= LEAST_BYTES:
            (self._packed if piece.is_packed else self._plain).add(num_bytes, seconds)

    def _pays(self) -> bool:
        plain = self._plain.seconds_per_byte
        if self._packed.is_known:
            return self._packed.seconds_per_byte < (1.0 - _LEAST_GAIN) * plain
        pack, share = 1.0 / _USUAL_RATE, _USUAL_SHARE
        if self._packing.is_known and self._reading.is_known:
            pack = max(0.0, self._packing.seconds_per_byte - self._reading.seconds_per_byte)
            share = self._num_packed.seconds_per_byte
        return pack + share * plain < plain
