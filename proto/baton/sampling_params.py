"""vLLM's place for the classes of parameters."""

from shared.offline.records.sampling_params import BeamSearchParams as BeamSearchParams
from shared.offline.records.sampling_params import RequestOutputKind as RequestOutputKind
from shared.offline.records.sampling_params import SamplingParams as SamplingParams
from shared.offline.records.sampling_params import (
    StructuredOutputsParams as StructuredOutputsParams,
)
