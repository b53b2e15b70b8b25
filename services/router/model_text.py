"""The files of a model that the router reads: tokenizer, templates, answer formats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.router.models import read_vocab_size
from services.router.parsers.find import find_reasoning_format, find_tool_format
from services.router.parsers.plan import ChatFormats
from shared.folder.find import find_folder
from shared.text.chat_template import ChatTemplate
from shared.text.generation_defaults import GenerationDefaults
from shared.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from services.router.config import RouterConfig


@dataclass(frozen=True, slots=True)
class ModelText:
    """Tokenizer, chat template and answer formats of a model."""

    tokenizer: Tokenizer
    chat_template: ChatTemplate
    formats: ChatFormats
    vocab_size: int


def load_text(config: RouterConfig) -> ModelText:
    """Read the model's files.

    Raises:
        ConfigError: a file cannot be used, or there is no parser of the configured name.
    """
    folder = find_folder(config.model, config.hub, config.changes)
    defaults = GenerationDefaults.choose(
        folder, config.generation_config, config.override_generation_config
    )
    tokenizer = Tokenizer.load(folder, defaults=defaults)
    template = ChatTemplate.load(folder, tokenizer.special_tokens)
    formats = ChatFormats(
        tools=find_tool_format(config.tool_call_parser, template.sources),
        reasoning=find_reasoning_format(config.reasoning_parser, template.sources),
    )
    return ModelText(tokenizer, template, formats, read_vocab_size(folder, tokenizer))
