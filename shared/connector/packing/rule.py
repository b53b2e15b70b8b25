"""Whether to pack the pieces of one connection, by what pieces took on it.

Nothing is assumed of a network: pieces are sent as they are until the rate is known. If it is low
enough, a trial sends pieces either way by chance, so that both meet the same load; they are packed
from then on if packed ones took less time, and one in a few is sent as it is to see whether that
stays so.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass
from enum import Enum, StrEnum, auto

#: Smaller pieces take the time of a round trip, packed or not.
LEAST_BYTES = 64 << 10
#: Bytes from which on a rate is known.
_KNOWN_BYTES = 1 << 20
#: A measurement fades as this number of pieces come after it.
_MEMORY = 16
#: Bytes per second that packing takes on one core beyond the checksum, and packed bytes per byte: a
#: trial begins if packing and sending less, one after the other, took less time than sending. The
#: receiver unpacks as fast as it copies.
_USUAL_RATE, _USUAL_SHARE = 6e9, 0.76
#: Pieces of a trial, of each kind: fewer say too little on a machine that does other work.
_TRIAL = 6
#: Packed pieces of a trial must gain this share: else the processor's time is better spent. Later
#: they must not lose.
_LEAST_GAIN = 0.03
#: While pieces are packed, one in so many is sent as it is.
_REFRESH = 16
#: Pieces that are sent as they are after a trial that has failed; twice as many each time, up to …
_PAUSE, _LONGEST_PAUSE = 48, 1536
#: A packed piece that is longer than this share of its bytes is not worth the receiver's work.
_MOST_SHARE = 0.95


class PackingMode(StrEnum):
    """A worker's setting."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


class _Phase(Enum):
    PLAIN = auto()
    TRIAL = auto()
    PACKED = auto()


@dataclass(slots=True)
class _Rate:
    """Pieces, bytes and seconds of recent work; older bytes and seconds fade."""

    num_pieces: int = 0
    num_bytes: float = 0.0
    seconds: float = 0.0

    def add(self, num_bytes: int, seconds: float) -> None:
        keep = 1.0 - 1.0 / _MEMORY
        self.num_pieces += 1
        self.num_bytes = keep * self.num_bytes + num_bytes
        self.seconds = keep * self.seconds + seconds

    @property
    def is_known(self) -> bool:
        return self.num_bytes >= _KNOWN_BYTES

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
        self._latency_s = 0.0
        self._outstanding: deque[_Sent] = deque()
        self._last_ack_s = 0.0
        self._phase = _Phase.PLAIN
        self._random = random.Random(0)
        self._num_since_plain = 0
        self._pause, self._next_pause = 0, _PAUSE

    def wants(self, num_bytes: int) -> bool:
        """Return whether to pack the next piece, which has `num_bytes` bytes."""
        if self._mode is not PackingMode.AUTO:
            return self._mode is PackingMode.ON
        if num_bytes < LEAST_BYTES:
            return False
        if self._phase is _Phase.PLAIN:
            self._watch()
        elif min(self._plain.num_pieces, self._packed.num_pieces) >= _TRIAL:
            self._judge()
        if self._phase is _Phase.TRIAL:
            return self._random.random() < 0.5
        if self._phase is _Phase.PACKED:
            self._num_since_plain = (self._num_since_plain + 1) % _REFRESH
            return self._num_since_plain != 0
        return False

    def answered(self, seconds: float) -> None:
        """Note how long an answer without any piece took."""
        self._latency_s = min(self._latency_s or seconds, seconds)

    def packed(self, num_bytes: int, num_packed: int) -> bool:
        """Note that `num_bytes` were packed to `num_packed`; return whether to send it so."""
        is_shorter = num_packed <= _MOST_SHARE * num_bytes
        if not is_shorter and self._phase is not _Phase.PLAIN:
            self._give_up()
        return is_shorter

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

    def _watch(self) -> None:
        """Begin a trial if the rate of plain pieces says so."""
        if self._pause:
            self._pause -= 1
        elif self._plain.is_known:
            plain = self._plain.seconds_per_byte
            if 1.0 / _USUAL_RATE + _USUAL_SHARE * plain < plain:
                self._phase = _Phase.TRIAL
                self._plain, self._packed = _Rate(), _Rate()

    def _judge(self) -> None:
        """End the trial; or packing, if the link has changed."""
        plain, packed = self._plain.seconds_per_byte, self._packed.seconds_per_byte
        most = 1.0 if self._phase is _Phase.PACKED else 1.0 - _LEAST_GAIN
        if packed > most * plain:
            self._give_up()
        else:
            self._phase, self._next_pause = _Phase.PACKED, _PAUSE

    def _give_up(self) -> None:
        """Send pieces as they are for a while: content and load change."""
        self._phase = _Phase.PLAIN
        self._pause, self._next_pause = self._next_pause, min(2 * self._next_pause, _LONGEST_PAUSE)
