"""Heads trained by gradient with PyTorch Lightning: the plain net is handed in and leaves without the trainer.

A training that was killed goes on from its last epoch and ends with the same weights: the order of an epoch's batches
follows from the seed and the epoch's number, the dropout of a step from the seed and the step's.

Axis letters: N rows, F features.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import BatchSampler, DataLoader, Dataset, Sampler
from tqdm import tqdm

from gistgate.gates.heads import HEADS, build_head, fold_standardisation
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


class Labelled(Dataset):
    """Standardised features and labels; a batch is one indexing operation, not one per row."""

    def __init__(self, x_NF: Tensor, kept_N: Tensor) -> None:
        self.x, self.kept = x_NF, kept_N

    def __len__(self) -> int:
        return len(self.kept)

    def __getitems__(self, index: list[int]) -> tuple[Tensor, Tensor]:
        chosen = torch.tensor(index)
        return self.x[chosen], self.kept[chosen]


class EpochOrder(Sampler[int]):
    """All rows in an order that follows from seed and epoch alone."""

    def __init__(self, num: int, seed: int) -> None:
        self.num, self.seed, self.epoch = num, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Called by Lightning before every epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.num

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed * 100_003 + self.epoch)
        return iter(torch.randperm(self.num, generator=generator).tolist())


class HeadTraining(pl.LightningModule):
    """Loss, optimiser and schedule for a net that turns features into one logit."""

    def __init__(self, net: nn.Module, params: TrainParams, seed: int) -> None:
        super().__init__()
        self.net, self.params, self.seed = net, params, seed

    def training_step(self, batch: tuple[Tensor, Tensor], _index: int) -> Tensor:
        torch.manual_seed(self.seed * 1_000_003 + self.global_step)
        return self.loss(batch)

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


class Progress(pl.Callback):
    """One bar over the epochs, with rate and time left."""

    def __init__(self, title: str, epochs: int) -> None:
        self.bar = tqdm(total=epochs, desc=f"train, {title}", unit="epoch", mininterval=5)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.bar.update(trainer.current_epoch)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.bar.set_postfix(loss=f"{float(trainer.callback_metrics['validation_loss']):.4f}", refresh=False)
        self.bar.update()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.bar.close()


def identity(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The dataset returns whole batches; nothing is left to collate."""
    return batch


def fit_net(
    kind: str, train: Rows, validation: Rows, params: TrainParams, seed: int, scratch: Path
) -> tuple[nn.Module, dict[str, float]]:
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
    trainer = pl.Trainer(
        max_epochs=params.epochs,
        accelerator="auto",
        devices=1,
        logger=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        num_sanity_val_steps=0,
        default_root_dir=scratch,
        callbacks=[best, stop, Progress(kind, params.epochs)],
    )
    order = EpochOrder(len(train), seed)
    batches = BatchSampler(order, params.batch_size, drop_last=False)
    seen = DataLoader(Labelled(standardise(train.x), train.kept), batch_sampler=batches, collate_fn=identity)
    unseen = DataLoader(
        Labelled(standardise(validation.x), validation.kept), batch_size=params.batch_size, collate_fn=identity
    )
    last = scratch / "last.ckpt"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="pytorch_lightning")  # advice on workers and loggers
        trainer.fit(HeadTraining(net, params, seed), seen, unseen, ckpt_path=str(last) if last.exists() else None)
    state = torch.load(best.best_model_path, weights_only=True)["state_dict"]
    net.load_state_dict({name.removeprefix("net."): tensor for name, tensor in state.items()})
    net = net.cpu().double()
    fold_standardisation(net.first, standardise.mean, standardise.scale)
    report = {"validation_loss": float(best.best_model_score), "epochs": trainer.current_epoch}
    return net.float().eval(), report


def start_at(rate: float, net: nn.Module) -> None:
    """Let the untrained net say the base rate of every row; harm is rare, and a bias learns slowly."""
    output = [layer for layer in net.modules() if isinstance(layer, nn.Linear)][-1]
    nn.init.zeros_(output.weight)
    nn.init.constant_(output.bias, float(torch.tensor(rate).logit(eps=1e-3)))


def head_sizes(kind: str, input_size: int, params: TrainParams) -> dict[str, float]:
    """Arguments of the head's class."""
    widths = {"hidden_size": params.hidden, "dropout": params.dropout} if kind == "mlp" else {}
    return {"input_size": input_size, **widths}
