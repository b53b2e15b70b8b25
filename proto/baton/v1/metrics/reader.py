"""vLLM's place for the classes of metrics."""

from shared.offline.records.metrics import Counter as Counter
from shared.offline.records.metrics import Gauge as Gauge
from shared.offline.records.metrics import Histogram as Histogram
from shared.offline.records.metrics import Metric as Metric
from shared.offline.records.metrics import Vector as Vector
