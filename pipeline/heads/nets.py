"""Heads trained by gradient descent with PyTorch Lightning; what comes back is a plain net.

A training that was killed goes on from its last epoch and ends with the same weights: the order of an epoch's batches
follows from the seed and the number of the epoch, and the dropout of a step from the seed and the number of the step.

Axis letters: N rows, F features.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import DataLoader, Sampler, TensorDataset

from gistgate.gates.heads import HEADS, build_head, fold_standardisation
from pipeline.common.checkpoints import WholeCheckpoints
from pipeline.common.progress import lightning_bar
from pipeline.heads.rows import Rows
from pipeline.params import TrainParams

for noisy in ("lightning.pytorch", "pytorch_lightning", "pytorch_lightning.utilities.rank_zero"):
    logging.getLogger(noisy).setLevel(logging.WARNING)


@dataclass(frozen=True)
class Standardisation:
    """Mean and scale of the training rows, [F] each; a constant feature keeps scale 1."""

    mean: Tensor
    scale: Tensor

    @classmethod
    def of(cls, x_NF: Tensor) -> Standardisation:
        std, mean = torch.std_mean(x_NF.double(), dim=0, correction=0)
        return cls(mean, torch.where(std > 1e-6, std, 1.0))

    def __call__(self, x_NF: Tensor) -> Tensor:
        return ((x_NF - self.mean) / self.scale).float()


class EpochBatches(Sampler[Tensor]):
    """Batches of row numbers in an order that follows from seed and epoch alone.

    Where several processes train together, each gets its part of every batch, so that the mean of their gradients is
    the gradient of the batch.
    """

    def __init__(self, num: int, size: int, seed: int) -> None:
        self.num, self.size, self.seed, self.epoch = num, size, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Called by Lightning before every epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return math.ceil(self.num / self.size)

    def __iter__(self) -> Iterator[Tensor]:
        # A generator reads `epoch` with the first batch: Lightning makes iterators before it sets the epoch.
        generator = torch.Generator().manual_seed(self.seed * 100_003 + self.epoch)
        number, processes = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        for batch in torch.randperm(self.num, generator=generator).split(self.size):
            yield batch[number::processes] if len(batch) >= processes else batch


def loader(x_NF: Tensor, kept_N: Tensor, batches: Iterable[Tensor]) -> DataLoader:
    """A loader whose batches are one indexing operation each, not one per row."""
    return DataLoader(TensorDataset(x_NF, kept_N), sampler=batches, batch_size=None)


class HeadTraining(pl.LightningModule):
    """Loss, optimiser and schedule for a net that turns features into one logit."""

    def __init__(self, net: nn.Module, params: TrainParams, seed: int) -> None:
        super().__init__()
        self.net, self.params, self.seed = net, params, seed
        self.curves: dict[str, list[float]] = {"training_loss": [], "validation_loss": []}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["curves"] = self.curves

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.curves = checkpoint["curves"]

    def on_train_epoch_end(self) -> None:
        for name, values in self.curves.items():
            values.append(float(self.trainer.callback_metrics[name]))

    def training_step(self, batch: tuple[Tensor, Tensor], _index: int) -> Tensor:
        torch.manual_seed(self.seed * 1_000_003 + self.global_step)
        loss = self.loss(batch)
        self.log("training_loss", loss, on_step=False, on_epoch=True, batch_size=len(batch[1]))
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], _index: int) -> None:
        self.log("validation_loss", self.loss(batch), on_epoch=True, batch_size=len(batch[1]), prog_bar=True)

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Cross entropy against the soft labels."""
        x, kept = batch
        return binary_cross_entropy_with_logits(self.net(x), kept)

    def configure_optimizers(self) -> dict[str, object]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.params.lr, weight_decay=self.params.weight_decay)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, int(self.trainer.estimated_stepping_batches))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def has_stopped(last: Path, patience: int) -> bool:
    """Whether an interrupted training had ended for want of a better validation loss."""
    states = torch.load(last, weights_only=True)["callbacks"] if last.exists() else {}
    waited = [state["wait_count"] for name, state in states.items() if name.startswith("EarlyStopping")]
    return any(count >= patience for count in waited)


def fit_net(
    kind: str, train: Rows, validation: Rows, params: TrainParams, seed: int, scratch: Path
) -> tuple[nn.Module, dict[str, Any]]:
    """A head of gistgate.gates.heads.HEADS with standardisation folded in, and how its training went.

    Checkpoints live in `scratch`; a training that finds one there continues from it.
    """
    pl.seed_everything(seed, verbose=False)
    net = build_head(HEADS[kind], head_sizes(kind, train.x.shape[1], params))
    start_at(float(train.kept.mean()), net)
    standardise = Standardisation.of(train.x)
    best = ModelCheckpoint(
        scratch,
        "best",
        monitor="validation_loss",
        save_last=True,
        save_on_train_epoch_end=True,  # a checkpoint in the middle of an epoch would repeat its batches
        enable_version_counter=False,
    )
    stop = EarlyStopping("validation_loss", patience=params.patience, check_on_train_epoch_end=True)
    batches = EpochBatches(len(train), params.batch_size, seed)
    trainer = pl.Trainer(
        max_epochs=params.epochs,
        accelerator="auto",
        devices=params.devices,
        strategy="ddp_spawn" if params.devices > 1 else "auto",
        use_distributed_sampler=False,  # EpochBatches divides the rows
        logger=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        default_root_dir=scratch,
        plugins=[WholeCheckpoints()],
        callbacks=[best, stop, *lightning_bar(20, f"head {kind}", params.epochs * len(batches))],
    )
    seen = loader(standardise(train.x), train.kept, batches)
    in_order = torch.arange(len(validation)).split(params.batch_size)
    unseen = loader(standardise(validation.x), validation.kept, in_order)
    last, training = scratch / "last.ckpt", HeadTraining(net, params, seed)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="pytorch_lightning")  # advice on workers and loggers
        if not has_stopped(last, params.patience):  # Lightning would train on, since a trainer does not keep that
            trainer.fit(training, seen, unseen, ckpt_path=str(last) if last.exists() else None)
    # Processes of their own leave nothing but files behind.
    ended = torch.load(last, weights_only=True)
    state = torch.load(scratch / "best.ckpt", weights_only=True)["state_dict"]
    net.load_state_dict({name.removeprefix("net."): tensor for name, tensor in state.items()})
    net = net.cpu().double()
    assert isinstance(net.first, nn.Linear)
    fold_standardisation(net.first, standardise.mean, standardise.scale)
    score = ended["callbacks"][best.state_key]["best_model_score"]
    curves = training.curves if training.curves["training_loss"] else ended["curves"]
    report = {"validation_loss": float(score), "epochs": ended["epoch"] + 1, "curves": curves}
    return net.float().eval(), report


def start_at(rate: float, net: nn.Module) -> None:
    """Let the untrained net give the base rate to every row; few rows are lost, and a bias learns slowly."""
    output = [layer for layer in net.modules() if isinstance(layer, nn.Linear)][-1]
    nn.init.zeros_(output.weight)
    nn.init.constant_(output.bias, float(torch.tensor(rate).logit(eps=1e-3)))


def head_sizes(kind: str, input_size: int, params: TrainParams) -> dict[str, float]:
    """Arguments of the head's class."""
    widths = {"hidden_size": params.hidden, "dropout": params.dropout} if kind == "mlp" else {}
    return {"input_size": input_size, **widths}
