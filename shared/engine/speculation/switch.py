"""Whether guessing pays, measured while the engine runs.

For each range of batch sizes it compares what steps with guesses took with what steps without them
would have taken for the same tokens. Where guessing loses it is turned off, and tried again after a
pause that doubles as long as it keeps losing. Where it wins, steps without guesses now and then
keep the comparison honest.

Looking for guesses costs, too, where nothing is found: steps do not overlap then. If that is all
that was tried, the pause stays short, since what comes next may be easy to guess.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

#: Steps without guesses before the first with them.
_WARM_UP = 3
#: Steps with guesses after which there are some without; and where guessing wins by far.
_PLAIN_EVERY = 64
_PLAIN_SELDOM = 256
_FAR = 1.25
#: Steps with guesses before they are judged, or of looking in vain; how fast older ones fade.
_TRIAL = 8
_VAIN_TRIAL = 24
#: Guessing that is worth less than this share of what it takes is given up after so many steps.
_HOPELESS, _FEW = 0.8, 3
#: Fewer steps with anything to check, faded, are none.
_ANY = 0.5
_FADE = 0.97
_SHORTEST_PAUSE = 64
_LONGEST_PAUSE = 1024
#: Weight of the newest step without guesses.
_NEWEST = 0.25
#: What guessing may seem to lose without being turned off: measurements are that uncertain.
_TOLERANCE = 0.015
#: A step that took more than so many times what its rows can take was held up by something else.
_HICCUP = 1.5


@dataclass(slots=True)
class _Range:
    """Batches of similar size."""

    #: The first steps without guesses, and what one takes by now.
    first_s: list[float] = field(default_factory=list)
    plain_s: float = 0.0
    num_plain: int = 0
    num_since_plain: int = 0
    #: Steps that were tried with guesses: what they took, and what their tokens were worth.
    took_s: float = 0.0
    worth_s: float = 0.0
    num_tried: int = 0
    #: Of these, with anything to check; older ones fade.
    drafted: float = 0.0
    pause: int = _SHORTEST_PAUSE
    pause_left: int = 0


class SpeculationSwitch:
    """One per engine."""

    def __init__(self) -> None:
        self._ranges: dict[int, _Range] = {}

    def wants_drafts(self, num_seqs: int) -> bool:
        """Whether the next step, of so many sequences, should have guesses. Once per step."""
        state = self._range(num_seqs)
        if state.pause_left:
            state.pause_left -= 1
            return False
        gain = self.gain(num_seqs)
        most = _PLAIN_EVERY if gain is None or gain < _FAR else _PLAIN_SELDOM
        return state.num_plain >= _WARM_UP and state.num_since_plain < most

    def gain(self, num_seqs: int) -> float | None:
        """Tokens per second with guesses, as a multiple of those without; None: not known yet."""
        state = self._range(num_seqs)
        return state.worth_s / state.took_s if state.took_s else None

    def note_plain(self, num_seqs: int, took_s: float) -> None:
        """A step of nothing but one token for each of so many sequences, and no guessing."""
        state = self._range(num_seqs)
        if state.num_plain < _WARM_UP:
            state.first_s.append(took_s)
            state.plain_s = median(state.first_s)
        else:
            # A hiccup of the machine counts as a slow step, not as what it was.
            state.plain_s += _NEWEST * (min(took_s, 2 * state.plain_s) - state.plain_s)
        state.num_plain += 1
        state.num_since_plain = 0

    def note_tried(
        self, num_seqs: int, *, num_rows: int, num_tokens: int, took_s: float, guessing_s: float
    ) -> None:
        """A step with guessing, which took `guessing_s` of the whole, even if nothing was guessed.

        It computed `num_rows` tokens, as many as sequences if nothing was found to guess, and gave
        `num_tokens`.
        """
        state = self._range(num_seqs)
        state.num_since_plain += 1
        state.num_tried += 1
        state.drafted = _FADE * state.drafted + (num_rows > num_seqs)
        # Rows are never dearer than steps of their own.
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
        """1, 2, 3 to 4, 5 to 8, and so on."""
        return self._ranges.setdefault((num_seqs - 1).bit_length(), _Range())
