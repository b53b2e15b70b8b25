"""Pairs of texts as tokens: a query and a document, for models that score the two together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shared.errors import InvalidRequestError
from shared.pooling.texts.text_input import VectorInput

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.pooling.texts.reader import TextReader
    from shared.text.chat_template import ChatTemplate

#: What relevance means where a request does not say: the words that Qwen3-Reranker learned.
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
#: Around a pair for Qwen3-Reranker.
_HEAD = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n"
)
_TAIL = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
_MARK = "<|im_start|>"
#: How often a document is shortened until its pair fits: its tokens are not those of its text.
_MAX_CUTS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PairReader:
    """Makes tokens of pairs. Slow for long texts."""

    texts: TextReader
    #: The template of the model's conversations; it writes pairs if it knows queries.
    template: ChatTemplate
    instruction: str | None = None

    def read(self, query: str, document: str, *, params: tuple[str, str]) -> VectorInput:
        """Return a pair's tokens. `params`: the fields that hold the two.

        Where the request asks for it, the document is shortened until the pair fits.

        Raises:
            InvalidRequestError: a text is empty, or the pair is too long.
        """
        for text, param in zip((query, document), params, strict=True):
            if not text:
                raise InvalidRequestError(f"{param} must not be empty", param=param)
        write = self._writer()
        pair = write(query, document)
        truncation, tokenizer = self.texts.truncation, self.texts.tokenizer
        for _ in range(_MAX_CUTS):
            num_over = len(pair.token_ids) - self.texts.limit
            if truncation is None or num_over <= 0:
                break
            ids = tuple(tokenizer.encode(document, add_special_tokens=False))
            kept = truncation.kept(ids, max(0, len(ids) - num_over))
            document = tokenizer.decode(kept)
            pair = write(query, document)
        self.texts.check_length(len(pair.token_ids), params[1])
        return pair

    def _writer(self) -> Callable[[str, str], VectorInput]:
        if _knows_queries(self.template):
            return self._by_template
        if self.texts.facts.is_causal and self.texts.tokenizer.token_id(_MARK) is not None:
            return self._by_words
        return self._by_tokenizer

    def _by_template(self, query: str, document: str) -> VectorInput:
        messages: list[dict[str, Any]] = [
            {"role": "query", "content": query},
            {"role": "document", "content": document},
        ]
        if self.instruction is not None:
            messages.insert(0, {"role": "system", "content": self.instruction})
        text = self.template.render(messages, extra=self._variables())
        return VectorInput(tuple(self.texts.tokenizer.encode(text, add_special_tokens=False)))

    def _variables(self) -> dict[str, Any]:
        return {} if self.instruction is None else {"instruction": self.instruction}

    def _by_words(self, query: str, document: str) -> VectorInput:
        instruction = INSTRUCTION if self.instruction is None else self.instruction
        body = f"<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"
        tokenizer = self.texts.tokenizer
        # Parts by parts, as the model was trained: no token spans two of them.
        parts = (tokenizer.encode(part, add_special_tokens=False) for part in (_HEAD, body, _TAIL))
        return VectorInput(tuple(token for part in parts for token in part))

    def _by_tokenizer(self, query: str, document: str) -> VectorInput:
        ids, types = self.texts.tokenizer.encode_pair(query, document)
        has_types = self.texts.facts.num_token_types > 1
        return VectorInput(tuple(ids), tuple(types) if has_types else ())


def _knows_queries(template: ChatTemplate) -> bool:
    """Return whether a template is for messages of the roles `query` and `document`."""
    return any(
        all(f'"{role}"' in source or f"'{role}'" in source for role in ("query", "document"))
        for source in template.sources
    )
