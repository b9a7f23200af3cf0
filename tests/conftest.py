"""What all tests share: one thread, so that times and sums are the same everywhere, and gradients
at the beginning.
"""

from collections.abc import Iterator

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def gradients() -> Iterator[None]:
    """Stages switch gradients off for their whole process, which tests share."""
    yield
    torch.set_grad_enabled(True)
