"""The parser of vLLM's example programs."""

from shared.offline.argument_parser import FlexibleArgumentParser as FlexibleArgumentParser
