"""Fit heads and probability maps: regressions by scikit-learn, nets by PyTorch Lightning; plain
modules come back. The order of an epoch's batches follows from the seed and the number of the
epoch, the dropout of a step from the seed and its number. Axis letters: N rows, F features."""

import math
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
import torch.distributed as dist
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint
from scipy.linalg import block_diag
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import GroupKFold, StratifiedGroupKFold, cross_val_predict
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import DataLoader, Sampler, TensorDataset

from gistgate.core.heads import HEADS, Isotonic, Linear, Platt, fold_standardisation
from gistgate.core.utils import UserError
from pipeline.labels.schema import TRIAL, Array, Rows, as_classes
from pipeline.pair.training import lightning
from pipeline.params import TrainParams

COMPONENTS = 60  # of a hidden state, that `fit_effects` tells apart
HARM_STRENGTH = 0.003  # C of the regression that tells harmful tokens from others
SAVED_PENALTY = 0.05  # of the ridge regression of saved tokens, for each row
MOST_SAVED = 16  # tokens; a text that grows or shrinks by more would decide the regression alone


def fit_logistic(
    rows: Rows, strengths: Sequence[float], folds: int
) -> tuple[Linear, dict[str, float]]:
    """Scikit-learn's regression, folded into one linear layer on raw features, and each C's log
    loss per unseen row.
    """
    kept = rows.kept.double().numpy()
    raw = rows.x.double().numpy()
    if not 0 < kept.mean() < 1:
        raise UserError(
            f"All {len(kept)} training labels are alike. Raise prompts.train in params.yaml."
        )
    scaler = StandardScaler().fit(raw)
    x = scaler.transform(raw)
    problem = rows.problem.numpy()
    losses = dict.fromkeys(sorted(strengths), 0.0)
    splits = (
        GroupKFold(min(folds, len(np.unique(problem)))).split(x, groups=problem)
        if len(losses) > 1
        else ()
    )
    for train, unseen in splits:
        if not 0 < kept[train].mean() < 1:
            continue
        index, label, weight = as_classes(kept[unseen])
        model = None
        for c in losses:
            model = fit_at(c, x[train], kept[train], model)
            probability = model.predict_proba(x[unseen][index])
            losses[c] += float(
                log_loss(label, probability, sample_weight=weight, normalize=False, labels=[0, 1])
            )
    losses = {c: loss / len(kept) for c, loss in losses.items()}
    model = fit_at(min(losses, key=lambda c: losses[c]), x, kept)
    head = Linear(x.shape[1]).double()
    with torch.no_grad():
        head.first.weight.copy_(torch.from_numpy(model.coef_))
        head.first.bias.copy_(torch.from_numpy(model.intercept_))
    fold_standardisation(
        head.first, torch.from_numpy(scaler.mean_), torch.from_numpy(scaler.scale_)
    )
    return head.float().eval(), {f"{c:g}": loss for c, loss in losses.items()}


def fit_effects(
    rows: Rows, widths: Sequence[int], price: float, folds: int
) -> tuple[Linear, dict[str, Any]]:
    """What keeping a draft token does to the whole answer, as a linear function of the features.
    The loss of score is taken to grow with the logit of a regression which tells the tokens that do
    harm from the others: few answers lose anything, so that losses themselves say less. Saved
    tokens are found by another regression. Both read wide features by their first components. The
    head's logit is the saved tokens at their `price`, minus the loss, so that a token that pays for
    itself has P = 0.5, in standard deviations of the rows."""
    scaler = StandardScaler().fit(raw := rows.x.double().numpy())
    phi, back = components(scaler.transform(raw), widths)
    loss, saved = rows.trial.double().numpy().T
    harmed = rows.kept.numpy() < 1
    problem = rows.problem.numpy()
    if (num := min(len(np.unique(problem[harmed == kind])) for kind in (False, True))) < folds:
        raise UserError(
            f"Tokens with and without harm lie in {num} training problems only. Raise"
            " prompts.train."
        )
    model = LogisticRegression(C=HARM_STRENGTH, max_iter=500)
    splits = StratifiedGroupKFold(folds)
    unseen = cross_val_predict(
        model, phi, harmed, groups=problem, cv=splits, method="decision_function"
    )
    slope = max(float(np.polyfit(unseen, loss, 1)[0]), 0.0)
    model.fit(phi, harmed)
    ridge = Ridge(SAVED_PENALTY * len(phi)).fit(phi, saved.clip(-MOST_SAVED, MOST_SAVED))
    slopes = slope * model.coef_[0] - price * ridge.coef_
    at_mean = (
        float(loss.mean())
        + slope * float(model.intercept_[0] - unseen.mean())
        - price * float(ridge.intercept_)
    )
    scale = float((phi @ slopes).std()) or 1.0
    head = Linear(raw.shape[1]).double()
    with torch.no_grad():
        head.first.weight.copy_(torch.from_numpy(-(back @ slopes) / scale)[None])
        head.first.bias.fill_(-at_mean / scale)
    fold_standardisation(
        head.first, torch.from_numpy(scaler.mean_), torch.from_numpy(scaler.scale_)
    )
    auc = float(roc_auc_score(harmed, unseen))
    return head.float().eval(), {
        "mean_loss": float(loss.mean()),
        "unseen_auc_of_harm": auc,
        "unit": scale,
    }


def components(x: Array, widths: Sequence[int]) -> tuple[Array, Array]:
    """Features [N, P] in place of standardised `x [N, F]`: of each that is wider than COMPONENTS
    its first principal components, with variance 1; and the matrix [F, P] that makes them."""
    parts = []
    for block in np.split(x, np.cumsum(widths)[:-1], axis=1):
        if block.shape[1] <= COMPONENTS:
            parts.append(np.eye(block.shape[1]))
            continue
        found = PCA(COMPONENTS, svd_solver="covariance_eigh").fit(block)
        parts.append((found.components_ / np.sqrt(found.explained_variance_)[:, None]).T)
    back = block_diag(*parts)
    return x @ back, back


def effects(rows: Rows) -> dict[str, float]:
    """What keeping one of these tokens does to its whole answer on average, loss of score and saved
    tokens, with standard errors that allow for what the tokens of a problem share."""
    found = dict[str, float]()
    index = np.unique(rows.problem.numpy(), return_inverse=True)[1]
    for name, values in zip(TRIAL, rows.trial.double().numpy().T, strict=True):
        by_problem = np.bincount(index, values - values.mean())
        found |= {
            name: float(values.mean()),
            f"{name}_error": float(np.sqrt((by_problem**2).sum())) / len(values),
        }
    return found


def fit_at(
    c: float, x: Array, kept: Array, start: LogisticRegression | None = None
) -> LogisticRegression:
    """A regression of strength C against soft labels; it begins with the weights of `start`."""
    index, label, weight = as_classes(kept)
    model = LogisticRegression(C=c, max_iter=2000, warm_start=True)
    if start is not None:
        model.coef_ = start.coef_.copy()
        model.intercept_ = start.intercept_.copy()
        model.classes_ = start.classes_
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", ConvergenceWarning
        )  # the loss on unseen problems decides, not the last digit
        return model.fit(x[index], label, sample_weight=weight)


class EpochBatches(Sampler[Tensor]):
    """Batches of row numbers in an order of seed and epoch alone; of each batch every process takes
    its part.
    """

    def __init__(self, num: int, size: int, seed: int) -> None:
        self.num = num
        self.size = size
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:  # called by Lightning before every epoch
        self.epoch = epoch

    def __len__(self) -> int:
        return math.ceil(self.num / self.size)

    def __iter__(self) -> Iterator[Tensor]:
        # A generator reads `epoch` with the first batch: Lightning makes iterators before it sets
        # the epoch.
        generator = torch.Generator().manual_seed(self.seed * 100_003 + self.epoch)
        number, processes = (
            (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        )
        for batch in torch.randperm(self.num, generator=generator).split(self.size):
            yield batch[number::processes] if len(batch) >= processes else batch


class HeadTraining(pl.LightningModule):
    """Loss, optimiser and schedule for a net that turns features into one logit."""

    def __init__(self, net: nn.Module, params: TrainParams, seed: int) -> None:
        super().__init__()
        self.net = net
        self.params = params
        self.seed = seed
        self.curves: dict[str, list[float]] = {"training_loss": [], "validation_loss": []}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["curves"] = self.curves

    def on_train_epoch_end(self) -> None:
        for name, values in self.curves.items():
            values.append(float(self.trainer.callback_metrics[name]))

    def training_step(self, batch: tuple[Tensor, Tensor], _index: int) -> Tensor:
        torch.manual_seed(self.seed * 1_000_003 + self.global_step)
        return self.logged_loss("training_loss", *batch)

    def validation_step(self, batch: tuple[Tensor, Tensor], _index: int) -> None:
        self.logged_loss("validation_loss", *batch)

    def logged_loss(self, name: str, x: Tensor, kept: Tensor) -> Tensor:
        """Cross entropy against the soft labels, whose mean over an epoch is logged."""
        loss = binary_cross_entropy_with_logits(self.net(x), kept)
        self.log(
            name,
            loss,
            on_step=False,
            on_epoch=True,
            batch_size=len(kept),
            prog_bar=name == "validation_loss",
        )
        return loss

    def configure_optimizers(self) -> dict[str, object]:
        optimizer = torch.optim.AdamW(
            self.parameters(), lr=self.params.lr, weight_decay=self.params.weight_decay
        )
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
            optimizer, int(self.trainer.estimated_stepping_batches)
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def fit_net(
    kind: str, train: Rows, validation: Rows, params: TrainParams, seed: int
) -> tuple[nn.Module, dict[str, Any]]:
    """A head of gistgate.gate.HEADS with standardisation folded in, and how its training
    went.
    """
    pl.seed_everything(seed, verbose=False)
    net = HEADS[kind](input_size=train.x.shape[1], **head_sizes(kind, params))
    # The untrained net gives the base rate to every row: few rows are lost, and a bias learns
    # slowly.
    output = [layer for layer in net.modules() if isinstance(layer, nn.Linear)][-1]
    nn.init.zeros_(output.weight)
    nn.init.constant_(output.bias, float(torch.tensor(float(train.kept.mean())).logit(eps=1e-3)))
    std, mean = torch.std_mean(train.x.double(), dim=0, correction=0)
    scale = torch.where(std > 1e-6, std, 1.0)  # a constant feature keeps scale 1
    in_order = torch.arange(len(validation)).split(params.batch_size)
    batches = EpochBatches(len(train), params.batch_size, seed)
    seen, unseen = (  # batches of one indexing operation each, not one per row
        DataLoader(
            TensorDataset(((rows.x - mean) / scale).float(), rows.kept),
            sampler=order,
            batch_size=None,
        )
        for rows, order in ((train, batches), (validation, in_order))
    )
    with TemporaryDirectory() as folder:
        best = ModelCheckpoint(
            folder, "best", monitor="validation_loss", save_last=True, save_on_train_epoch_end=True
        )
        stop = EarlyStopping(
            "validation_loss", patience=params.patience, check_on_train_epoch_end=True
        )
        trainer = lightning(
            20,
            [best, stop],
            max_epochs=params.epochs,
            accelerator="auto",
            devices=params.devices,
            strategy="ddp_spawn" if params.devices > 1 else "auto",
            use_distributed_sampler=False,  # EpochBatches divides the rows
            default_root_dir=folder,
        )
        trainer.fit(HeadTraining(net, params, seed), seen, unseen)
        # Processes of their own leave nothing but files behind.
        last, state = (
            torch.load(Path(folder) / f"{name}.ckpt", weights_only=True)
            for name in ("last", "best")
        )
    net.load_state_dict(
        {name.removeprefix("net."): tensor for name, tensor in state["state_dict"].items()}
    )
    net = net.cpu().double()
    assert isinstance(net.first, nn.Linear)
    fold_standardisation(net.first, mean, scale)
    score = float(last["callbacks"][best.state_key]["best_model_score"])
    return net.float().eval(), {
        "validation_loss": score,
        "epochs": last["epoch"] + 1,
        "curves": last["curves"],
    }


def head_sizes(kind: str, params: TrainParams) -> dict[str, float]:
    """Arguments of the head's class besides `input_size`."""
    return {"hidden_size": params.hidden, "dropout": params.dropout} if kind == "mlp" else {}


def fit_map(kind: str, logits_N: Tensor, kept_N: Tensor) -> nn.Module:
    """The probability map `kind`, platt or isotonic, for logits and labels of problems that the
    head has not seen.
    """
    fit = {"platt": fit_platt, "isotonic": fit_isotonic}[kind]
    return fit(logits_N.double().numpy(), kept_N.double().numpy())


def fit_platt(logits: np.ndarray, kept: np.ndarray) -> Platt:
    """Platt's regression with his smoothed targets, so that few examples never give a probability
    of 0 or 1.
    """
    num_kept = kept.sum()
    num_lost = (1 - kept).sum()
    high = (num_kept + 1) / (num_kept + 2)
    low = 1 / (num_lost + 2)
    target = kept * high + (1 - kept) * low
    index, label, weight = as_classes(target)
    spread = logits.std() or 1.0
    model = LogisticRegression(C=np.inf, max_iter=1000).fit(
        logits[index, None] / spread, label, sample_weight=weight
    )
    slope = float(model.coef_[0, 0] / spread)
    if (
        slope <= 0
    ):  # the head ranks the wrong way round: give the base rate instead of inverting its scores
        rate = target.mean()
        return Platt(0.0, float(np.log(rate / (1 - rate))))
    return Platt(slope, float(model.intercept_[0]))


def fit_isotonic(logits: np.ndarray, kept: np.ndarray) -> Isotonic:
    """Isotonic regression whose ends stay away from 0 and 1, so that no logit is ever certain."""
    margin = 1 / (len(kept) + 2)
    model = IsotonicRegression(y_min=margin, y_max=1 - margin).fit(logits, kept)
    return Isotonic(model.X_thresholds_.tolist(), model.y_thresholds_.tolist())
