"""A checkpoint that cannot be written leaves the one before it."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import torch

from gistgate.errors import UserError
from pipeline.common.checkpoints import WholeCheckpoints


def test_a_checkpoint_is_read_as_it_was_written(tmp_path: Path):
    WholeCheckpoints().save_checkpoint({"step": 3}, tmp_path / "last.ckpt")
    assert WholeCheckpoints().load_checkpoint(tmp_path / "last.ckpt") == {"step": 3}


def test_a_full_disk_keeps_the_checkpoint_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    whole = WholeCheckpoints()
    whole.save_checkpoint({"step": 3}, tmp_path / "last.ckpt")

    def half(_: object, file: Path, *__: object, **___: object) -> None:
        Path(str(file)).write_bytes(b"PK")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(
        "pytorch_lightning.plugins.io.TorchCheckpointIO.save_checkpoint", lambda self, *values: half(*values)
    )
    with pytest.raises(UserError, match="last.ckpt could not be written"):
        whole.save_checkpoint({"step": 4}, tmp_path / "last.ckpt")
    assert torch.load(tmp_path / "last.ckpt", weights_only=True) == {"step": 3}
    assert [path.name for path in tmp_path.iterdir()] == ["last.ckpt"]


@pytest.mark.parametrize("module", ["pipeline.pairs.training", "pipeline.heads.nets"])
def test_every_training_that_resumes_uses_them(module: str):
    text = (Path(__file__).parents[3] / f"{module.replace('.', '/')}.py").read_text()
    assert text.count("pl.Trainer(") == text.count("plugins=[WholeCheckpoints()]") == 1
