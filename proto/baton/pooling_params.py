"""vLLM's place for the parameters of requests for vectors."""

from shared.offline.pooling.params import PoolingParams as PoolingParams
