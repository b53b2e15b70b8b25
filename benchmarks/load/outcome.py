"""What the client saw of one request. Times are in seconds on its own monotonic clock."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class Outcome:
    """Filled while the answer streams. Failed if `error` says anything."""

    prompt_len: int = 0
    start_s: float = 0.0
    ttft_s: float = 0.0
    itls_s: list[float] = field(default_factory=list)
    latency_s: float = 0.0
    output_len: int = 0
    text: str = ""
    error: str = ""
    # Waited for a place under --max-concurrency; not part of any latency.
    client_queue_s: float = 0.0
    # Left later than planned, because this process was busy.
    lag_s: float = 0.0

    @property
    def success(self) -> bool:
        """Whether the whole answer came."""
        return not self.error

    @property
    def num_chunks(self) -> int:
        """Chunks with choices so far."""
        return 1 + len(self.itls_s) if self.ttft_s else 0

    def add_chunk(self, at_s: float) -> None:
        """Note a chunk with choices; the first one makes TTFT, each other one an ITL."""
        since_start_s = at_s - self.start_s
        if self.num_chunks:
            self.itls_s.append(since_start_s - self.latency_s)
        else:
            self.ttft_s = since_start_s
        self.latency_s = since_start_s

    def chunk_times_s(self) -> list[float]:
        """When each chunk came."""
        times = [self.start_s + self.ttft_s] if self.num_chunks else []
        for itl_s in self.itls_s:
            times.append(times[-1] + itl_s)
        return times
