"""How every stage ends: one sentence on failure, and an exit status that DVC understands.

A stage's last two lines are `if __name__ == "__main__":` and `run(main)`.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable

from gistgate.errors import UserError


def run(main: Callable[[], object]) -> None:
    """Call `main`; turn what a person can mend into one sentence on stderr and exit status 1 (130 if interrupted)."""
    try:
        main()
    except UserError as error:
        leave(str(error))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        leave("The disk is full. Free some space and start again; finished shards are kept.")
    except KeyboardInterrupt:
        leave("Interrupted. Start again to go on; finished shards are kept.", status=130)


def leave(sentence: str, status: int = 1) -> None:
    """End the process with one sentence."""
    print(" ".join(sentence.split()), file=sys.stderr)
    raise SystemExit(status)


def item() -> str:
    """The matrix item this stage was started for: its only argument.

    Raises:
        UserError: none or several were given.
    """
    if len(sys.argv) != 2:
        stage = os.environ.get("DVC_STAGE", "this stage").split("@")[0]
        raise UserError(f"{stage} wants exactly one name behind it, such as `python -m pipeline.stages.evaluate fly`.")
    return sys.argv[1]


def seed_everything(seed: int) -> None:
    """Seed Python, numpy and torch."""
    import random

    import numpy
    import torch

    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)
