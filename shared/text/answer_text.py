"""The text of one answer from its token ids: detokenising and stop strings together."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shared.text.detokenizer import IncrementalDetokenizer
from shared.text.stop_strings import StopStrings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shared.text.tokenizer import Tokenizer


class TextPiece(NamedTuple):
    """The text of some tokens. After the text's end, tokens beyond `num_tokens` do not count."""

    text: str
    num_tokens: int
    stop_string: str | None = None
    #: Whether the text ends because its tokens repeat themselves.
    repeats: bool = False

    @property
    def has_ended(self) -> bool:
        """Whether the answer ends here, whatever the engine says."""
        return self.repeats or self.stop_string is not None


class AnswerText:
    """Feed it every token of an answer. `min_tokens` and stop tokens are treated as vLLM does."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        prompt_ids: Sequence[int] = (),
        stop: Sequence[str] = (),
        include_stop_str_in_output: bool = False,
        min_tokens: int = 0,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
        shown_token_ids: frozenset[int] = frozenset(),
        repeats: Callable[[int], bool] | None = None,
    ) -> None:
        """Begin an answer.

        `shown_token_ids` are special tokens that are not skipped. `repeats` is told every token,
        and returns whether the answer repeats itself enough to be ended.
        """
        self._detokenizer = IncrementalDetokenizer(
            tokenizer,
            skip_special_tokens=skip_special_tokens,
            spaces_between_special_tokens=spaces_between_special_tokens,
            shown_token_ids=shown_token_ids,
            prompt_ids=prompt_ids,
        )
        self._stops = StopStrings(stop, include_in_output=include_stop_str_in_output)
        self._repeats = repeats
        self._may_end = any(stop) or repeats is not None
        self._include_stop = include_stop_str_in_output
        self._min_tokens = min_tokens
        #: Number of tokens, up to the one that completed a stop string.
        self.num_tokens = 0

    def feed(
        self, ids: Sequence[int], *, final: bool = False, stop_token_id: int | None = None
    ) -> TextPiece:
        """Add the tokens of one step; return the text that became final.

        `final`: the engine ended the answer with these. `stop_token_id`: the last of them, if it
        ended the answer; its text is not part of the answer unless stop strings are included.
        """
        shown = ids
        if final and stop_token_id is not None and not self._include_stop:
            shown = ids[:-1]
        if not self._may_end:
            self.num_tokens += len(ids)
            text = self._detokenizer.feed(shown)
            return TextPiece(text + self._detokenizer.flush() if final else text, len(ids))
        return self._feed_one_by_one(ids, shown, final=final)

    def _feed_one_by_one(
        self, ids: Sequence[int], shown: Sequence[int], *, final: bool
    ) -> TextPiece:
        """Feed tokens one by one, to find the token that ends the text.

        Usage and logprobs need it. The engine's reason for its last token comes before repetition.
        """
        parts: list[str] = []
        for place, token_id in enumerate(shown, start=1):
            self.num_tokens += 1
            armed = self.num_tokens > self._min_tokens
            parts.append(self._stops.feed(self._detokenizer.feed((token_id,)), armed=armed))
            if self._stops.matched is not None:
                return TextPiece("".join(parts), place, self._stops.matched)
            repeats = self._repeats is not None and self._repeats(token_id) and armed
            if repeats and not (final and place == len(ids)):
                parts.append(self._end())
                return TextPiece("".join(parts), place, repeats=True)
        self.num_tokens += len(ids) - len(shown)
        if final:
            parts.append(self._end())
        return TextPiece("".join(parts), len(ids), self._stops.matched)

    def _end(self) -> str:
        """Return the text that was held back."""
        armed = self.num_tokens > self._min_tokens
        rest = self._stops.feed(self._detokenizer.flush(), armed=armed)
        return rest + self._stops.flush()
