"""Checkpoints that other libraries wrote, beside what those libraries read of them.

`python -m tests.oracles LIBRARY` records them anew, in an environment of that library alone
(`requirements/`). Tests read the recordings and need no library.
"""
