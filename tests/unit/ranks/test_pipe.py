"""Tensors from one stage to the next through shared memory, between threads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shared.ranks.ring_pipe import PipeEnd, RingPipe, pipe_file
from tests.suites.ranks.pipe import PipeSuite

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.suites.ranks.pipe import Ends


class TestRingPipe(PipeSuite):
    @pytest.fixture
    def ends(self) -> Iterator[Ends]:
        file = pipe_file()
        end = PipeEnd(file.fd, (1, 3))
        found = RingPipe(None, end, timeout_s=0.2), RingPipe(end, None, timeout_s=0.2)
        yield found
        for pipe in found:
            pipe.close()
        file.close()
