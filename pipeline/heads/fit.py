"""Fit heads and probability maps: regressions by scikit-learn, nets by PyTorch Lightning; plain
modules come back. The order of an epoch's batches follows from the seed and the number of the
epoch, the dropout of a step from the seed and its number. Axis letters: N rows, F features.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from scipy.linalg import block_diag
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import GroupKFold, StratifiedGroupKFold, cross_val_predict
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import DataLoader, TensorDataset

from gistgate.core.heads import HEADS, Linear, Platt, fold_standardisation
from gistgate.core.utils import UserError
from pipeline.labels.schema import TRIAL, Array, Rows, as_classes
from pipeline.pair.training import train_best
from pipeline.params import TrainParams

COMPONENTS = 60  # of a hidden state, that `fit_effects` tells apart
HARM_STRENGTH = 0.003  # C of the regression that tells harmful tokens from others
SAVED_PENALTY = 0.05  # of the ridge regression of saved tokens, for each row
MOST_SAVED = 16  # tokens; a text that grows or shrinks by more would decide the regression alone
# The loss on unseen problems decides, not the last digit.
warnings.filterwarnings("ignore", category=ConvergenceWarning)


def fit_logistic(
    rows: Rows, strengths: Sequence[float], folds: int
) -> tuple[Linear, dict[str, float]]:
    """Scikit-learn's regression, folded into one linear layer on raw features, and each C's log
    loss per unseen row.
    """
    kept = rows.kept.double().numpy()
    if not 0 < kept.mean() < 1:
        raise UserError(
            f"All {len(kept)} training labels are alike. Raise prompts.train in params.yaml."
        )
    raw = rows.x.double().numpy()
    scaler = StandardScaler().fit(raw)
    x = scaler.transform(raw)
    losses = unseen_losses(x, kept, rows.problem.numpy(), sorted(strengths), folds)
    best = min(losses, key=lambda c: losses[c])
    model = fit_soft(LogisticRegression(C=best, max_iter=2000), x, kept)
    head = folded(model.coef_[0], model.intercept_[0], scaler)
    return head, {f"{c:g}": loss for c, loss in losses.items()}


def unseen_losses(
    x: Array, kept: Array, problem: Array, strengths: Sequence[float], folds: int
) -> dict[float, float]:
    """The log loss per row of problems that the regression has not seen, by C."""
    losses = dict.fromkeys(strengths, 0.0)
    splitter = GroupKFold(min(folds, len(np.unique(problem))))
    for train, unseen in splitter.split(x, groups=problem):
        if not 0 < kept[train].mean() < 1:
            continue
        index, label, weight = as_classes(kept[unseen])
        model = LogisticRegression(max_iter=2000, warm_start=True)
        for c in losses:
            fit_soft(model.set_params(C=c), x[train], kept[train])
            probability = model.predict_proba(x[unseen][index])
            loss = log_loss(
                label, probability, sample_weight=weight, normalize=False, labels=[0, 1]
            )
            losses[c] += float(loss)
    return {c: loss / len(kept) for c, loss in losses.items()}


def fit_soft(model: LogisticRegression, x: Array, kept: Array) -> LogisticRegression:
    """The regression fitted to soft labels."""
    index, label, weight = as_classes(kept)
    return model.fit(x[index], label, sample_weight=weight)


def folded(weight: Array, bias: float, scaler: StandardScaler) -> Linear:
    """A head of raw features that does what a regression `weight [F]` and `bias` does with
    standardised ones.
    """
    head = Linear(len(weight)).double()
    with torch.no_grad():
        head.first.weight.copy_(torch.from_numpy(weight)[None])
        head.first.bias.fill_(bias)
    scale = torch.from_numpy(scaler.scale_)
    fold_standardisation(head.first, torch.from_numpy(scaler.mean_), scale)
    return head.float().eval()


def fit_effects(
    rows: Rows, widths: Sequence[int], price: float, folds: int
) -> tuple[Linear, dict[str, Any]]:
    """What keeping a draft token does to the whole answer, as a linear function of the features.
    The loss of score is taken to grow with the logit of a regression which tells the tokens that do
    harm from the others: few answers lose anything, so that losses themselves say less. Saved
    tokens are found by another regression. Both read wide features by their first components. The
    head's logit is the saved tokens at their `price`, minus the loss, so that a token that pays for
    itself has P = 0.5, in standard deviations of the rows.
    """
    raw = rows.x.double().numpy()
    scaler = StandardScaler().fit(raw)
    phi, back = components(scaler.transform(raw), widths)
    loss, saved = rows.trial.double().numpy().T
    harmed = rows.kept.numpy() < 1
    problem = rows.problem.numpy()
    num = min(len(np.unique(problem[harmed])), len(np.unique(problem[~harmed])))
    if num < folds:
        raise UserError(
            f"Tokens with and without harm lie in {num} training problems only. Raise"
            " prompts.train."
        )
    harm = LogisticRegression(C=HARM_STRENGTH, max_iter=500)
    splits = StratifiedGroupKFold(folds)
    unseen = cross_val_predict(
        harm, phi, harmed, groups=problem, cv=splits, method="decision_function"
    )
    slope = max(float(np.polyfit(unseen, loss, 1)[0]), 0.0)
    harm.fit(phi, harmed)
    ridge = Ridge(SAVED_PENALTY * len(phi)).fit(phi, saved.clip(-MOST_SAVED, MOST_SAVED))
    slopes = slope * harm.coef_[0] - price * ridge.coef_
    at_mean = (
        float(loss.mean())
        + slope * float(harm.intercept_[0] - unseen.mean())
        - price * float(ridge.intercept_)
    )
    unit = float((phi @ slopes).std()) or 1.0
    head = folded(-(back @ slopes) / unit, -at_mean / unit, scaler)
    auc = float(roc_auc_score(harmed, unseen))
    return head, {"mean_loss": float(loss.mean()), "unseen_auc_of_harm": auc, "unit": unit}


def components(x: Array, widths: Sequence[int]) -> tuple[Array, Array]:
    """Features [N, P] in place of standardised `x [N, F]`: of each that is wider than COMPONENTS
    its first principal components, with variance 1; and the matrix [F, P] that makes them.
    """
    parts = []
    for block in np.split(x, np.cumsum(widths)[:-1], axis=1):
        if block.shape[1] <= COMPONENTS:
            parts.append(np.eye(block.shape[1]))
            continue
        pca = PCA(COMPONENTS, svd_solver="covariance_eigh").fit(block)
        parts.append((pca.components_ / np.sqrt(pca.explained_variance_)[:, None]).T)
    back = block_diag(*parts)
    return x @ back, back


def effects(rows: Rows) -> dict[str, float]:
    """What keeping one of these tokens does to its whole answer on average, loss of score and saved
    tokens, with standard errors that allow for what the tokens of a problem share.
    """
    means: dict[str, float] = {}
    index = np.unique(rows.problem.numpy(), return_inverse=True)[1]
    for name, values in zip(TRIAL, rows.trial.double().numpy().T):
        by_problem = np.bincount(index, values - values.mean())
        means[name] = float(values.mean())
        means[f"{name}_error"] = float(np.sqrt((by_problem**2).sum())) / len(values)
    return means


class HeadTraining(pl.LightningModule):
    """Loss, optimiser and schedule for a net that turns features into one logit."""

    def __init__(
        self,
        net: nn.Module,
        seen: TensorDataset,
        unseen: TensorDataset,
        params: TrainParams,
        seed: int,
    ) -> None:
        super().__init__()
        self.net = net
        self.seen = seen
        self.unseen = unseen
        self.params = params
        self.seed = seed
        self.curves: dict[str, list[float]] = {"training_loss": [], "validation_loss": []}

    def train_dataloader(self) -> DataLoader[Any]:
        """The batches of an epoch, in an order of seed and epoch alone."""
        generator = torch.Generator().manual_seed(self.seed * 100_003 + self.current_epoch)
        return self.batches(self.seen, torch.randperm(len(self.seen), generator=generator))

    def val_dataloader(self) -> DataLoader[Any]:
        """The batches that decide when the training stops."""
        return self.batches(self.unseen, torch.arange(len(self.unseen)))

    def batches(self, data: TensorDataset, order: Tensor) -> DataLoader[Any]:
        """Rows in this order; a batch is one indexing operation."""
        return DataLoader(data, sampler=order.split(self.params.batch_size), batch_size=None)

    def on_train_epoch_end(self) -> None:
        for name, values in self.curves.items():
            values.append(float(self.trainer.callback_metrics[name]))

    def training_step(self, batch: tuple[Tensor, Tensor], _index: int) -> Tensor:
        torch.manual_seed(self.seed * 1_000_003 + self.global_step)
        return self.logged_loss("training_loss", *batch)

    def validation_step(self, batch: tuple[Tensor, Tensor], _index: int) -> None:
        self.logged_loss("validation_loss", *batch, prog_bar=True)

    def logged_loss(
        self,
        name: str,
        x: Tensor,
        kept: Tensor,
        **options: Any,
    ) -> Tensor:
        """Cross entropy against the soft labels, whose mean over an epoch is logged."""
        loss = binary_cross_entropy_with_logits(self.net(x), kept)
        self.log(name, loss, on_step=False, on_epoch=True, batch_size=len(kept), **options)
        return loss

    def configure_optimizers(self) -> dict[str, object]:
        params = self.params
        optimizer = torch.optim.AdamW(
            self.parameters(), params.lr, weight_decay=params.weight_decay
        )
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def fit_net(
    kind: str, train: Rows, validation: Rows, params: TrainParams, seed: int
) -> tuple[nn.Module, dict[str, Any]]:
    """A head of gistgate.core.heads.HEADS with standardisation folded in, and how its training
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

    def standardised(rows: Rows) -> TensorDataset:
        return TensorDataset(((rows.x - mean) / scale).float(), rows.kept)

    training = HeadTraining(net, standardised(train), standardised(validation), params, seed)
    train_best(training, params.epochs, params.patience, reload_dataloaders_every_n_epochs=1)
    net = net.cpu().double()
    assert isinstance(net.first, nn.Linear)
    fold_standardisation(net.first, mean, scale)
    losses = training.curves["validation_loss"]
    return net.float().eval(), {
        "validation_loss": min(losses),
        "epochs": len(losses),
        "curves": training.curves,
    }


def head_sizes(kind: str, params: TrainParams) -> dict[str, float]:
    """Arguments of the head's class besides `input_size`."""
    return {"hidden_size": params.hidden, "dropout": params.dropout} if kind == "mlp" else {}


def fit_platt(logits_N: Tensor, kept_N: Tensor) -> Platt:
    """The probability map for logits and labels of problems that the head has not seen: Platt's
    regression with his smoothed targets, so that few examples never give a probability of 0 or 1.
    """
    logits = logits_N.double().numpy()
    kept = kept_N.double().numpy()
    num_kept = kept.sum()
    high = (num_kept + 1) / (num_kept + 2)
    low = 1 / ((1 - kept).sum() + 2)
    target = kept * high + (1 - kept) * low
    spread = logits.std() or 1.0
    model = LogisticRegression(C=np.inf, max_iter=1000)
    fit_soft(model, logits[:, None] / spread, target)
    slope = float(model.coef_[0, 0] / spread)
    if slope <= 0:  # the head ranks the wrong way round: every row gets the base rate
        rate = target.mean()
        return Platt(0.0, float(np.log(rate / (1 - rate))))
    return Platt(slope, float(model.intercept_[0]))
