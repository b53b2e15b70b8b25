"""vLLM's place for the forms of prompts."""

from shared.offline.records.prompts import PromptType as PromptType
from shared.offline.records.prompts import TextPrompt as TextPrompt
from shared.offline.records.prompts import TokensPrompt as TokensPrompt
