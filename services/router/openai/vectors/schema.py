"""The bodies of the endpoints of vectors.

Pydantic reads these annotations at run time.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from services.router.openai.schema.base import Body, RequestObject
from services.router.openai.schema.chat import ChatPromptFields
from services.router.openai.schema.field_types import INT32_MAX
from shared.generation.truncation import Side  # noqa: TC001 read at run time

_TEXT_ONLY = "this server takes text alone"
#: Known fields of vLLM that change nothing here, and why.
IGNORED: dict[str, str] = {
    "mm_processor_kwargs": _TEXT_ONLY,
    "media_io_kwargs": _TEXT_ONLY,
    "padding": "texts are computed without padding",
    "user": "nothing is done with it",
}


class VectorFields(BaseModel):
    """Fields of all endpoints of vectors. Their meaning is vLLM's."""

    user: str | None = None
    #: Keep this number of a text's tokens; -1: as many as the model takes.
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=INT32_MAX)] | None = None
    #: The side that is cut off; default: right.
    truncation_side: Side | None = None
    #: Whether embeddings get the length 1, and logits become scores.
    use_activation: bool | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    priority: Annotated[int, Field(ge=-INT32_MAX, le=INT32_MAX)] | None = None
    request_id: str | None = None


class InputFields(VectorFields):
    """Texts of which each gets a vector."""

    #: A string, a list of token ids, or a list of either; reading/prompts.py checks.
    input: Any = None
    add_special_tokens: bool | None = None
    #: Of the checkpoint's prompts, which is put in front of each text; empty: none.
    prompt_name: Annotated[str, Field(max_length=256)] | None = None


class EncodingFields(BaseModel):
    """How numbers are written."""

    encoding_format: Literal["float", "base64"] | None = None
    #: Of base64.
    embed_dtype: Literal["float32", "float16"] | None = None
    endianness: Literal["native", "little", "big"] | None = None
    #: Leading numbers of each vector.
    dimensions: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None
    #: vLLM's older name of `use_activation`.
    normalize: bool | None = None


class EmbeddingBody(Body, InputFields, EncodingFields):
    """A request for embeddings of texts."""

    ignored = frozenset(IGNORED)


class ConversationFields(ChatPromptFields):
    """A conversation whose vector is wanted: by default, no answer follows."""

    add_generation_prompt: bool | None = False


class EmbeddingChatBody(Body, ConversationFields, InputFields, EncodingFields):
    """A request for the embedding of a conversation."""

    ignored = frozenset(IGNORED)


class ClassifyBody(Body, InputFields):
    """A request for the classes of texts."""

    ignored = frozenset(IGNORED)


class ClassifyChatBody(Body, ConversationFields, InputFields):
    """A request for the classes of a conversation."""

    ignored = frozenset(IGNORED)


#: vLLM's names of tasks, and ours for the same.
TaskName = Literal["embed", "classify", "score", "token_embed", "encode", "embedding"]


class PoolingBody(EmbeddingBody):
    """A request for vectors of any kind."""

    task: TaskName | None = None


class PoolingChatBody(EmbeddingChatBody):
    """The same, of a conversation."""

    task: TaskName | None = None


class TextDocument(RequestObject):
    """A document as an object."""

    text: str


ScoreText = str | TextDocument
ScoreTexts = ScoreText | list[ScoreText]


class RerankBody(Body, VectorFields):
    """A request to order documents."""

    ignored = frozenset(IGNORED)

    query: ScoreText
    documents: ScoreTexts
    #: The best of them; 0 and null: all.
    top_n: Annotated[int, Field(ge=0, le=INT32_MAX)] | None = None
    #: false: the results have no texts.
    return_documents: bool | None = None
    #: What relevance means, for models that take it.
    instruction: str | None = None


class ScoreBody(Body, VectorFields):
    """A request for scores of pairs. One of the four names on each side."""

    ignored = frozenset(IGNORED)

    text_1: ScoreTexts | None = None
    text_2: ScoreTexts | None = None
    queries: ScoreTexts | None = None
    documents: ScoreTexts | None = None
    items: ScoreTexts | None = None
    data_1: ScoreTexts | None = None
    data_2: ScoreTexts | None = None
    instruction: str | None = None
