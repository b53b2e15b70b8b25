"""vLLM's place for the arguments of engines."""

from shared.offline.engine_args import AsyncEngineArgs as AsyncEngineArgs
from shared.offline.engine_args import EngineArgs as EngineArgs
