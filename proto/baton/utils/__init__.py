"""What programs for vLLM import from its `utils`."""

from shared.offline.argument_parser import FlexibleArgumentParser as FlexibleArgumentParser
