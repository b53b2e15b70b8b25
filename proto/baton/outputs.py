"""vLLM's place for the classes of answers."""

from shared.offline.outputs import CompletionOutput as CompletionOutput
from shared.offline.outputs import RequestOutput as RequestOutput
