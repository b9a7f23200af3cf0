"""What all tests share: one thread, so that times and sums are the same everywhere."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
