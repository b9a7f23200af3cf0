"""What the trainings with Lightning share: a progress bar on terminals, and checkpoints that are whole or absent."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pytorch_lightning.callbacks import TQDMProgressBar
from pytorch_lightning.plugins.io import TorchCheckpointIO

from gistgate.core.files import write_atomic


def lightning_bar(refresh_rate: int, _title: str = "", _total: int = 0) -> list[Any]:
    """Lightning's bar, refreshed after so many steps; silent for 0 and in a log."""
    return [TQDMProgressBar(refresh_rate=refresh_rate if sys.stdout.isatty() else 0)]


class WholeCheckpoints(TorchCheckpointIO):
    """Writes a checkpoint beside its place and renames it, where Lightning itself writes in place."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Write a checkpoint; where that fails, the one before it stays."""
        save = super().save_checkpoint
        write_atomic(path, lambda part: save(checkpoint, part, storage_options))
