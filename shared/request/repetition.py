"""The end of an answer that says the same again and again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from shared.errors import InvalidRequestError
from shared.request.answer import FinishReason

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shared.text.answer_text import TextPiece

PARAM = "repetition_detection"
#: The cause of such an end, in place of a stop string; vLLM's word.
REPETITION_DETECTED = "repetition_detected"
#: Each pattern length costs time at every token.
MAX_PATTERN_SIZE = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class RepetitionDetection:
    """End an answer whose last tokens are a pattern, `min_count` times in a row."""

    #: Tokens of the longest pattern; 0: nothing is detected.
    max_pattern_size: int = 0
    #: Tokens of the shortest pattern; 0 is 1.
    min_pattern_size: int = 0
    min_count: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            # A pattern that comes a million times is as good as none.
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
                raise _wrong(f"{field.name} must be an integer of at least 0, not {value!r:.64}")
        if self.max_pattern_size > MAX_PATTERN_SIZE:
            raise _wrong(f"max_pattern_size must be at most {MAX_PATTERN_SIZE}")
        if self.min_pattern_size > self.max_pattern_size:
            raise _wrong("min_pattern_size must be at most max_pattern_size")
        if self.max_pattern_size and self.min_count < 2:
            raise _wrong("min_count must be at least 2, unless max_pattern_size is 0")


class RepetitionDetector:
    """Finds the first repetition in the tokens of one answer."""

    def __init__(self, wanted: RepetitionDetection) -> None:
        sizes = range(max(1, wanted.min_pattern_size), wanted.max_pattern_size + 1)
        #: By pattern length: the number of last tokens that equal those one pattern earlier.
        self._runs = dict.fromkeys(sizes, 0)
        self._num_repeats = wanted.min_count - 1
        self._token_ids: list[int] = []

    def feed(self, token_id: int) -> bool:
        """Add a token; return whether a pattern has now come often enough."""
        ids, runs = self._token_ids, self._runs
        found = False
        for size in runs:
            if size > len(ids):
                break
            if ids[-size] == token_id:
                runs[size] += 1
                found = found or runs[size] >= size * self._num_repeats
            else:
                runs[size] = 0
        ids.append(token_id)
        return found


def repeats_as(wanted: RepetitionDetection | None) -> Callable[[int], bool] | None:
    """Return the detector of one answer, for `AnswerText`; None if nothing is to be detected."""
    return None if wanted is None else RepetitionDetector(wanted).feed


def text_end(piece: TextPiece) -> tuple[FinishReason, str] | None:
    """Return why a piece's text ends the answer, and what ended it; None if it does not."""
    if piece.repeats:
        return FinishReason.REPETITION, REPETITION_DETECTED
    return None if piece.stop_string is None else (FinishReason.STOP, piece.stop_string)


def read_repetition(value: Any) -> RepetitionDetection | None:
    """Return the record of vLLM's three fields, given as such or as an object; None for none.

    Raises:
        InvalidRequestError: it is neither, or a field is wrong.
    """
    if value is None or isinstance(value, RepetitionDetection):
        return value
    names = [field.name for field in fields(RepetitionDetection)]
    if isinstance(value, Mapping):
        _check_names(list(value), names)
        return RepetitionDetection(**value)
    if not all(hasattr(value, name) for name in names):
        raise _wrong(f"it must be an object with {', '.join(names)}")
    return RepetitionDetection(**{name: getattr(value, name) for name in names})


def _check_names(given: Sequence[Any], names: Sequence[str]) -> None:
    unknown = [str(name)[:64] for name in given if name not in names]
    if unknown:
        raise _wrong(f"it has {', '.join(names)}, but no {unknown[0]}")


def _wrong(problem: str) -> InvalidRequestError:
    return InvalidRequestError(f"{PARAM}: {problem}", param=PARAM)
