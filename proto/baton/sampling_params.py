"""vLLM's place for the classes of parameters."""

from shared.offline.sampling_params import BeamSearchParams as BeamSearchParams
from shared.offline.sampling_params import RequestOutputKind as RequestOutputKind
from shared.offline.sampling_params import SamplingParams as SamplingParams
from shared.offline.sampling_params import StructuredOutputsParams as StructuredOutputsParams
