"""Checkpoints of a training that are whole or absent, so that a full disk or a kill never leaves a half one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pytorch_lightning.plugins.io import TorchCheckpointIO

from gistgate.files import write_atomic


class WholeCheckpoints(TorchCheckpointIO):
    """Writes a checkpoint beside its place and renames it, where Lightning itself writes in place."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Write a checkpoint.

        Raises:
            UserError: it cannot be written; the one before it stays.
        """
        write_atomic(path, lambda part: self.save_in_place(checkpoint, part, storage_options))

    def save_in_place(self, checkpoint: dict[str, Any], path: Path, storage_options: Any) -> None:
        """What Lightning does."""
        super().save_checkpoint(checkpoint, path, storage_options)
