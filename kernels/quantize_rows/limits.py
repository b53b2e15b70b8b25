"""The types of 8 bits that we quantise to."""

from __future__ import annotations

import torch

#: The largest number that each is used for. int8 leaves -128 out, so that signs are alike.
LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
