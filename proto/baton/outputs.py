"""vLLM's place for the classes of answers."""

from shared.offline.pooling.outputs import ClassificationOutput as ClassificationOutput
from shared.offline.pooling.outputs import (
    ClassificationRequestOutput as ClassificationRequestOutput,
)
from shared.offline.pooling.outputs import EmbeddingOutput as EmbeddingOutput
from shared.offline.pooling.outputs import EmbeddingRequestOutput as EmbeddingRequestOutput
from shared.offline.pooling.outputs import PoolingOutput as PoolingOutput
from shared.offline.pooling.outputs import PoolingRequestOutput as PoolingRequestOutput
from shared.offline.pooling.outputs import ScoringOutput as ScoringOutput
from shared.offline.pooling.outputs import ScoringRequestOutput as ScoringRequestOutput
from shared.offline.records.outputs import CompletionOutput as CompletionOutput
from shared.offline.records.outputs import RequestOutput as RequestOutput
