"""Training of one probe with Lightning, and what it is worth on problems it has not seen."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EarlyStopping
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss
from torch.utils.data import DataLoader, TensorDataset

from gistgate.optional.segments.probes import Probe
from pipeline.studies.segments.params import SegmentParams
from pipeline.studies.segments.states import Examples

BINS = 10


class ProbeTraining(pl.LightningModule):
    """Loss and optimiser; a segment counts as often as it was drawn. Keeps the best weights."""

    def __init__(self, probe: nn.Module, loss: str, lr: float) -> None:
        super().__init__()
        self.probe, self.kind, self.lr = probe, loss, lr
        self.best, self.weights = float("inf"), copy.deepcopy(probe.state_dict())

    def training_step(self, batch: list[Tensor], _index: int) -> Tensor:
        return self.loss(batch)

    def validation_step(self, batch: list[Tensor], _index: int) -> None:
        self.log("validation_loss", self.loss(batch), on_epoch=True, batch_size=int(batch[3].sum()))

    def on_validation_epoch_end(self) -> None:
        now = float(self.trainer.callback_metrics["validation_loss"])
        if now < self.best:
            self.best, self.weights = now, copy.deepcopy(self.probe.state_dict())

    def loss(self, batch: list[Tensor]) -> Tensor:
        states, valid, share, count = batch
        logits = self.probe(states, valid)
        each = (
            binary_cross_entropy_with_logits(logits, share, reduction="none")
            if self.kind == "bce"
            else mse_loss(logits.sigmoid(), share, reduction="none")
        )
        return (each * count).sum() / count.sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=0.01)


def fit_probe(
    train: Examples,
    validation: Examples,
    writers: tuple[str, ...],
    pooling: str,
    loss: str,
    params: SegmentParams,
    seed: int,
) -> Probe:
    """A probe trained on the segments that `writers` drew."""
    pl.seed_everything(seed, verbose=False)
    probe = Probe(train.states.shape[-1], params.hidden, pooling)
    training = ProbeTraining(probe, loss, params.lr)
    trainer = pl.Trainer(
        max_epochs=params.epochs,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        num_sanity_val_steps=0,
        callbacks=[EarlyStopping("validation_loss", patience=params.patience)],
    )
    generator = torch.Generator().manual_seed(seed)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="pytorch_lightning")  # advice on workers and loggers
        trainer.fit(
            training,
            DataLoader(dataset(train, writers), params.batch_size, shuffle=True, generator=generator),
            DataLoader(dataset(validation, writers), 1024),
        )
    probe.load_state_dict(training.weights)
    return probe.eval()


def dataset(examples: Examples, writers: tuple[str, ...]) -> TensorDataset:
    """The segments that these models drew, with counts."""
    count = sum((examples.drawn[role] for role in writers), torch.zeros_like(examples.problem))
    at = count > 0
    return TensorDataset(examples.states[at], examples.valid[at], examples.share[at], count[at].float())


@torch.no_grad()
def measure(probe: Probe, test: Examples, writer: str, base: float) -> dict[str, Any]:
    """Brier score against the shares, that of the constant `base`, reliability and correlation, each draw counted."""
    states, valid, share, count = dataset(test, (writer,)).tensors
    probability, weight = probe(states, valid).sigmoid(), count / count.sum()
    bins = (probability * BINS).long().clamp_max(BINS - 1)
    curve = [
        {
            "weight": float(weight[bins == b].sum()),
            "predicted": float((probability * weight)[bins == b].sum() / weight[bins == b].sum()),
            "found": float((share * weight)[bins == b].sum() / weight[bins == b].sum()),
        }
        for b in bins.unique().tolist()
    ]
    return {
        "segments": int(count.sum()),
        "brier": float(((probability - share) ** 2 * weight).sum()),
        "brier_constant": float(((base - share) ** 2 * weight).sum()),
        "ece": sum(one["weight"] * abs(one["predicted"] - one["found"]) for one in curve),
        "correlation": correlation(probability, share, weight),
        "reliability": curve,
    }


def correlation(x: Tensor, y: Tensor, weight: Tensor) -> float:
    """Pearson's, weighted; 0 where one of both is constant."""
    x, y = x - (x * weight).sum(), y - (y * weight).sum()
    scale = ((x * x * weight).sum() * (y * y * weight).sum()).sqrt()
    return float((x * y * weight).sum() / scale) if scale > 1e-12 else 0.0
