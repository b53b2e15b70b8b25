"""vLLM's place for the classes of metrics."""

from shared.offline.metrics import Counter as Counter
from shared.offline.metrics import Gauge as Gauge
from shared.offline.metrics import Histogram as Histogram
from shared.offline.metrics import Metric as Metric
from shared.offline.metrics import Vector as Vector
