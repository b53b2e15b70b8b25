"""The choice of parsers for the answers to one chat."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from services.router.parsers.answer import TextAnswerReader
from services.router.parsers.custom import CustomCalls
from services.router.parsers.events import ChatReader
from shared.request.grammar.spec import Thinking

if TYPE_CHECKING:
    from services.router.parsers.base import ReasoningFormat, TextParser, ToolFormat, Tools
    from shared.generation.params import GenerationParams
    from shared.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFormats:
    """Formats of the model's tool calls and reasoning; None: it has none, or it is unknown."""

    tools: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingPlan:
    """How to parse the answers to one chat. Without parsers, all text is content."""

    #: None: there are no tools to call.
    tools: ToolFormat | None = None
    #: The tools that answers may call.
    offered: Tools = field(default_factory=dict)
    #: Whether a grammar of the format's schema constrains the answers.
    is_forced: bool = False
    #: Whether a grammar holds the calls of an answer, and leaves its other text free.
    is_tagged: bool = False
    parallel: bool = True
    reasoning: ReasoningFormat | None = None
    include_reasoning: bool = True

    def hold(
        self, params: GenerationParams, prompt: str, tokenizer: Tokenizer
    ) -> tuple[ReadingPlan, GenerationParams]:
        """Let an answer with a grammar reason before it, if the model reasons.

        If the marks are not single tokens, such an answer has no reasoning and is parsed without
        it. Call this with the prompt's text before anything is read.
        """
        if params.grammar is None or self.reasoning is None:
            return self, params
        marks = self.reasoning.marks(prompt)
        if marks is None:
            return self, params
        begin, end = tokenizer.token_id(marks.begin), tokenizer.token_id(marks.end)
        if begin is None or end is None:
            return self if self.is_tagged else replace(self, reasoning=None), params
        thinking = Thinking(begin_token_id=begin, end_token_id=end, is_open=marks.is_open)
        return self, replace(params, grammar=replace(params.grammar, thinking=thinking))

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing to parse."""
        return self.tools is None and self.reasoning is None

    def shown_token_ids(self, tokenizer: Tokenizer) -> frozenset[int]:
        """Return special tokens that the parsers must see, though texts omit special tokens."""
        texts = [
            text
            for used in (self.tools, self.reasoning)
            if used is not None
            for text in used.special_tokens
        ]
        ids = {tokenizer.token_id(text) for text in texts}
        return tokenizer.special_token_ids.intersection(i for i in ids if i is not None)

    def new_reader(self, prompt: str) -> ChatReader:
        """Return a reader of all answers to this prompt."""
        custom = frozenset(name for name, spec in self.offered.items() if spec.is_custom)
        if not custom:
            return ChatReader(lambda: self._answer_reader(prompt))
        return ChatReader(lambda: CustomCalls(self._answer_reader(prompt), custom))

    def _answer_reader(self, prompt: str) -> TextAnswerReader:
        reasoning = self.reasoning
        if self.tools is not None and self.tools.reads_reasoning and not self.is_forced:
            reasoning = None
        return TextAnswerReader(
            reasoning=None if reasoning is None else reasoning.parser(prompt),
            tools=self._tool_parser(),
            include_reasoning=self.include_reasoning,
            parallel=self.parallel,
        )

    def _tool_parser(self) -> TextParser | None:
        if self.tools is None:
            return None
        if self.is_forced:
            return self.tools.forced_parser(self.offered)
        return self.tools.parser(self.offered)
