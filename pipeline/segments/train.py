"""Training of one probe with Lightning, and what it is worth on problems it has not seen."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EarlyStopping
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss
from torch.utils.data import DataLoader, TensorDataset
from transformers import PreTrainedModel

from gistgate.core.features import tap
from gistgate.core.files import read_json_lines, write_json
from gistgate.core.reader import Reader, left_padded
from gistgate.core.utils import UserError
from gistgate.segments.probes import POOLINGS, Probe, Probes
from pipeline.heads.data import ProblemParts, split_by_problem
from pipeline.pair.pair import load_pair
from pipeline.params import Params, SegmentParams, read_params
from pipeline.run import run
from pipeline.segments.collect import ROLES, SAMPLES, shares

# ---- The states that predicted each segment, read by both models as the decoder will read them.


@dataclass(frozen=True)
class Examples:
    """Different segments of all prefixes, with how often each was drawn."""

    problem: Tensor
    """Number of the problem [N]."""
    states: Tensor
    """Last states that predict the segment [N, K, D]."""
    valid: Tensor
    """Tokens of the segment [N, K]."""
    share: Tensor
    """Semantic probability under the model [N]."""
    drawn: dict[str, Tensor]
    """How often each model drew it [N], by role."""

    def where(self, mask: Tensor) -> Examples:
        """Only these rows."""
        drawn = {role: count[mask] for role, count in self.drawn.items()}
        return Examples(self.problem[mask], self.states[mask], self.valid[mask], self.share[mask], drawn)


def examples_of(rows: Sequence[dict[str, Any]], model: PreTrainedModel, role: str, judge: str, limit: int) -> Examples:
    """What a model's states say about every different segment, labelled by `judge`.

    Prefixes behind which the model itself finished none are left out: they have no shares.
    """
    prefixes, segments, problems, labels = [], [], [], []
    drawn: dict[str, list[int]] = {name: [] for name in ROLES}
    for row in rows:
        if role not in row["roles"]:
            continue
        own = shares(row, judge, role)
        known = {tuple(ids): share for ids, share in zip(row["segments"], own, strict=True)}
        writers = [(tuple(ids), who) for ids, who in zip(row["segments"], row["roles"], strict=True)]
        for ids, share in known.items():
            prefixes.append([*row["prompt"], *row["answer"]])
            segments.append(list(ids))
            problems.append(row["problem"])
            labels.append(share)
            for name in ROLES:
                drawn[name].append(writers.count((ids, name)))
    states, valid = read_states(model, prefixes, segments, limit)
    counts = {name: torch.tensor(count) for name, count in drawn.items()}
    return Examples(torch.tensor(problems), states, valid, torch.tensor(labels), counts)


@torch.no_grad()  # not inference mode: probes are trained on these
def read_states(
    model: PreTrainedModel, prefixes: Sequence[list[int]], segments: Sequence[list[int]], limit: int, batch: int = 64
) -> tuple[Tensor, Tensor]:
    """States [N, limit, D] that predict the tokens of each segment, and where there is one [N, limit]."""
    width = model.config.get_text_config().hidden_size
    states = torch.zeros(len(segments), limit, width)
    lengths = torch.tensor([len(segment) for segment in segments])
    for start in range(0, len(segments), batch):
        places = range(start, min(start + batch, len(segments)))
        texts = [[*prefixes[n], *segments[n][:-1]] for n in places]  # the last token predicts what follows
        keep = max(len(segments[n]) for n in places)
        with tap(model, ["post"]) as seen:
            Reader(model, len(texts)).read(*left_padded(texts, model.device), keep=keep)
        for row, n in enumerate(places):
            size = len(segments[n])
            states[n, :size] = seen["post"][row, -size:].float().cpu()
    return states, torch.arange(limit) < lengths[:, None]


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


# ---- Train the probes of both models, compare them, and keep one of each.


# isort: split

FOLDER = Path("models/segments")


def main() -> None:
    params, own = read_params(), read_params().segments
    pair, rows = load_pair(params), read_json_lines(SAMPLES)
    check_samples(rows)
    models = {"target": pair.target, "draft": pair.draft_model}
    examples = {role: examples_of(rows, models[role], role, own.judge, own.limit) for role in ROLES}
    report, probes = {}, {}
    for role in ROLES:
        report[role], probes[role] = compare(examples[role], role, params, own)
    Probes(probes["target"], probes["draft"], own.style, own.limit).save(
        FOLDER, pair.target, pair.draft_model, settings=asdict(own), seed=params.seed
    )
    write_json(Path("reports/segments/probes.json"), report)


def check_samples(rows: Sequence[dict[str, Any]]) -> None:
    """Refuse samples that cannot be split.

    Raises:
        UserError: a model finished segments in fewer than four problems.
    """
    for role in ROLES:
        num = len({row["problem"] for row in rows if role in row["roles"]})
        if num < 4:
            raise UserError(
                f"{SAMPLES}: the {role} finished segments in {num} problems, and four are needed. Raise `limit` or "
                "`problems`, or choose another `style`."
            )


class Trial:
    """One model's segments, split by problem."""

    def __init__(self, examples: Examples, params: Params, own: SegmentParams) -> None:
        self.examples, self.params, self.own = examples, params, own
        self.parts = split_by_problem(examples.problem, params.train, params.seed)

    def check(self, writers: tuple[str, ...], parts: ProblemParts) -> None:
        """Refuse a split of which a part has no segment of one of these writers.

        Raises:
            UserError: it is so.
        """
        masks = {"train": parts.train, "validation": parts.validation, "test": parts.test}
        for (name, mask), writer in product(masks.items(), writers):
            if not int(self.examples.drawn[writer][mask].sum()):
                raise UserError(
                    f"The {writer} finished no segment in the part `{name}`. Raise `problems`, `samples` or `limit` in "
                    "pipeline/studies/segments/params.yaml, or the part's share in params.yaml."
                )

    def fit(self, writers: tuple[str, ...], pooling: str, loss: str, parts: ProblemParts | None = None) -> Any:
        """A probe for these choices."""
        parts = parts or self.parts
        train, validation = parts.train | parts.calibration, parts.validation
        one = self.examples
        return fit_probe(one.where(train), one.where(validation), writers, pooling, loss, self.own, self.params.seed)

    def measure(self, probe: Any, writers: tuple[str, ...], parts: ProblemParts | None = None) -> dict[str, Any]:
        """What it is worth on the test problems, on segments of each of these writers."""
        parts = parts or self.parts
        seen, test = self.examples.where(parts.train), self.examples.where(parts.test)
        report = {}
        for writer in writers:
            count = seen.drawn[writer].float()
            base = float((seen.share * count).sum() / count.sum())
            report[writer] = measure(probe, test, writer, base)
        return report


def compare(examples: Examples, role: str, params: Params, own: SegmentParams) -> tuple[dict[str, Any], Any]:
    """Poolings and losses, who wrote the training segments, what a split by sample would have claimed; and the probe.

    Both probes judge what the draft has written, so that is what both are trained on, the target's on its own as well.
    """
    trial, report, chosen = Trial(examples, params, own), {}, None
    writers = ROLES if role == "target" else ("draft",)
    leaking = by_sample(len(examples.problem), trial.parts, params.seed)
    for parts in (trial.parts, leaking):
        trial.check(writers, parts)
    for pooling in POOLINGS:
        for loss in ("bce", "mse"):
            probe = trial.fit(writers, pooling, loss)
            report[f"{pooling}, {loss}"] = trial.measure(probe, writers)
            if (pooling, loss) == (own.pooling, own.loss):
                chosen = probe
    if role == "target":
        report["own segments only"] = trial.measure(trial.fit((role,), own.pooling, own.loss), writers)
    probe = trial.fit(writers, own.pooling, own.loss, leaking)
    report["split by sample"] = trial.measure(probe, writers, leaking)
    return report, chosen


def by_sample(num: int, parts: ProblemParts, seed: int) -> ProblemParts:
    """Parts of the same sizes that divide samples, not problems: neighbours fall on both sides."""
    order = torch.randperm(num, generator=torch.Generator().manual_seed(seed))
    found: dict[str, Tensor] = {}
    for name in ("train", "validation", "calibration", "test"):
        size = int(getattr(parts, name).sum())
        found[name] = torch.zeros(num, dtype=torch.bool)
        found[name][order[:size]] = True
        order = order[size:]
    return ProblemParts(**found)


if __name__ == "__main__":
    run(main)
