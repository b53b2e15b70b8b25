"""vLLM's place for the forms of prompts."""

from shared.offline.prompts import PromptType as PromptType
from shared.offline.prompts import TextPrompt as TextPrompt
from shared.offline.prompts import TokensPrompt as TokensPrompt
