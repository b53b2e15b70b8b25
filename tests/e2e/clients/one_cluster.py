"""Which of the clusters all clients are pointed at."""

from __future__ import annotations

import pytest

#: For every module here: one connector is enough, clients do not see it.
one_cluster = pytest.mark.parametrize("cluster", ["shm"], indirect=True, scope="session")
