"""How every stage starts and ends: quiet libraries, one sentence on failure, an exit status that DVC understands.

    if __name__ == "__main__":
        run(main)

Import this module before torch and transformers: it sets the environment that they read at import.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable

from gistgate.errors import UserError

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "DVC_NO_ANALYTICS": "1",
    "GIT_PYTHON_REFRESH": "quiet",
    "OMP_WAIT_POLICY": "PASSIVE",
    "PYTHONHASHSEED": "0",
}
"""Defaults; a variable that is already set wins, so HF_HUB_OFFLINE=0 lets a real pair be fetched."""

for name, value in ENVIRONMENT.items():
    os.environ.setdefault(name, value)


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
        raise UserError(f"{stage} wants exactly one name behind it, such as `python -m pipeline.evaluate fly`.")
    return sys.argv[1]


def seed_everything(seed: int) -> None:
    """Seed Python, numpy and torch."""
    import random

    import numpy
    import torch

    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)
