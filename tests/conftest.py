"""One thread: the networks here are so small that a second one only waits, and sums keep their order."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
