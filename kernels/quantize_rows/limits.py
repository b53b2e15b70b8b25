"""The types of 8 bits that rows are quantised to."""

from __future__ import annotations

import torch

#: The largest magnitude in each type. int8's -128 is not used, so that signs are symmetric.
LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
#: The least number in each type. With a scale that is given, int8 has its -128, too.
LEAST = {torch.int8: -128.0, torch.float8_e4m3fn: -448.0}
