"""Whether speculation pays, measured while the engine runs.

For each range of batch sizes it compares the time of steps with drafts with the time that steps
without drafts would have taken for the same tokens. Where speculation loses, it is turned off, and
tried again after a pause that doubles as long as it keeps losing. Where it wins, occasional steps
without drafts keep the comparison current.

Looking for drafts has a cost even if none are found: steps do not overlap then. If the proposer
only looked, the pause stays short, since drafts for the next tokens may be easy to find.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

#: Steps without drafts before the first with them.
_WARM_UP = 3
#: Steps with drafts after which some have none; and the same where speculation wins by far.
_PLAIN_EVERY = 64
_PLAIN_SELDOM = 256
_FAR = 1.25
#: Steps with drafts, or fruitless looks, before they are judged; decay of older ones.
_TRIAL = 8
_VAIN_TRIAL = 24
#: Speculation that gains less than this share of its time is given up after this number of steps.
_HOPELESS, _FEW = 0.8, 3
#: A smaller (decayed) number of steps with drafts counts as none.
_ANY = 0.5
_FADE = 0.97
_SHORTEST_PAUSE = 64
_LONGEST_PAUSE = 1024
#: Weight of the newest step without drafts.
_NEWEST = 0.25
#: Apparent loss at which speculation stays on: measurements are that uncertain.
_TOLERANCE = 0.015
#: A step that took more than this multiple of its rows' usual time was delayed by something else.
_HICCUP = 1.5


@dataclass(slots=True)
class _Range:
    """Batches of similar size."""

    #: The first steps without drafts, and the present time of one.
    first_s: list[float] = field(default_factory=list)
    plain_s: float = 0.0
    num_plain: int = 0
    num_since_plain: int = 0
    #: Steps tried with drafts: their time, and the value of their tokens.
    took_s: float = 0.0
    worth_s: float = 0.0
    num_tried: int = 0
    #: Those of them with drafts to check; older ones decay.
    drafted: float = 0.0
    pause: int = _SHORTEST_PAUSE
    pause_left: int = 0


class SpeculationSwitch:
    """One per engine."""

    def __init__(self) -> None:
        self._ranges: dict[int, _Range] = {}

    def wants_drafts(self, num_seqs: int) -> bool:
        """Return whether the next step, with this number of sequences, should have drafts.

        Call it once per step.
        """
        state = self._range(num_seqs)
        if state.pause_left:
            state.pause_left -= 1
            return False
        gain = self.gain(num_seqs)
        most = _PLAIN_EVERY if gain is None or gain < _FAR else _PLAIN_SELDOM
        return state.num_plain >= _WARM_UP and state.num_since_plain < most

    def gain(self, num_seqs: int) -> float | None:
        """Return tokens per second with drafts relative to those without; None: unknown yet."""
        state = self._range(num_seqs)
        return state.worth_s / state.took_s if state.took_s else None

    def note_plain(self, num_seqs: int, took_s: float) -> None:
        """Record a step of exactly one token for each of this number of sequences, without the
        proposer.
        """
        state = self._range(num_seqs)
        if state.num_plain < _WARM_UP:
            state.first_s.append(took_s)
            state.plain_s = median(state.first_s)
        else:
            # A delay of the machine counts as a slow step at most.
            state.plain_s += _NEWEST * (min(took_s, 2 * state.plain_s) - state.plain_s)
        state.num_plain += 1
        state.num_since_plain = 0

    def note_tried(
        self, num_seqs: int, *, num_rows: int, num_tokens: int, took_s: float, guessing_s: float
    ) -> None:
        """Record a step with a call of the proposer, which took `guessing_s` of the whole time.

        It computed `num_rows` tokens (one per sequence if there were no drafts), and yielded
        `num_tokens`.
        """
        state = self._range(num_seqs)
        state.num_since_plain += 1
        state.num_tried += 1
        state.drafted = _FADE * state.drafted + (num_rows > num_seqs)
        # Rows never take longer than steps of their own.
        most_s = state.plain_s * max(num_rows / num_seqs, _HICCUP) + guessing_s
        state.took_s = _FADE * state.took_s + min(took_s, most_s)
        state.worth_s = _FADE * state.worth_s + state.plain_s * num_tokens / num_seqs
        if state.drafted <= _ANY:
            num_needed = _VAIN_TRIAL
        else:
            num_needed = _FEW if state.worth_s < _HOPELESS * state.took_s else _TRIAL
        if state.num_tried >= num_needed:
            self._judge(state)

    def _judge(self, state: _Range) -> None:
        if state.worth_s >= (1 - _TOLERANCE) * state.took_s:
            state.pause = _SHORTEST_PAUSE
            return
        if state.drafted > _ANY:
            state.pause_left = state.pause
            state.pause = min(2 * state.pause, _LONGEST_PAUSE)
        else:
            state.pause_left = _SHORTEST_PAUSE
        state.took_s = state.worth_s = state.drafted = 0.0
        state.num_tried = 0

    def _range(self, num_seqs: int) -> _Range:
        """Return the range of a batch size: 1, 2, 3 to 4, 5 to 8, and so on."""
        return self._ranges.setdefault((num_seqs - 1).bit_length(), _Range())
