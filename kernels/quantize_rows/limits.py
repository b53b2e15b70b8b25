"""The types of 8 bits that rows are quantised to."""

from __future__ import annotations

import torch

#: The largest magnitude in each type. int8's -128 is not used, so that signs are symmetric.
LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
