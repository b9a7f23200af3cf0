"""Probes of SemanticSpec (arXiv 2602.03708): how probable a model finds the meaning of a segment,
from its own states. `python -m pipeline.segments.train` writes models/segments. Both probes are
trained on what the draft wrote, because that is what they judge, and the target's on its own
segments as well.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import DataLoader, TensorDataset
from transformers import PreTrainedModel

from gistgate.core.features import tap
from gistgate.core.files import write_atomic, write_json
from gistgate.core.reader import Reader, left_padded
from gistgate.core.utils import UserError
from gistgate.segments.probes import GATE, Probe, Probes
from pipeline.labels.schema import split_by_problem
from pipeline.pair.pair import load_pair
from pipeline.pair.training import train_best
from pipeline.params import Params, SegmentParams, read_params, recorded
from pipeline.paths import HEADS, SEGMENTS
from pipeline.run import run
from pipeline.segments.collect import ROLES, collected, shares
from pipeline.segments.judges import agreement
from pipeline.task import load_task

BINS = 10  # of the reliability curve


def main() -> None:
    params = read_params()
    settings = params.segments
    pair = load_pair(params)
    rows = collected(params, pair, load_task(params))
    report = agreement(rows)
    probes = {}
    for role, model in {"target": pair.target, "draft": pair.draft_model}.items():
        examples = examples_of(rows, model, role, settings.judge, settings.limit)
        probes[role], report[role] = fit_and_measure(examples, role, params)
    trained = Probes(probes["target"], probes["draft"], settings.style, settings.limit)

    def write(folder: Path) -> None:
        trained.save(
            folder,
            pair.target,
            pair.draft_model,
            settings=recorded(settings),
            seed=params.seed,
        )
        shutil.copytree(HEADS / settings.head, folder / GATE)
        write_json(folder / "report.json", report)

    write_atomic(SEGMENTS, write)
    for role in ROLES:
        measures = report[role]["draft"]
        print(
            f"{role}: Brier score {measures['brier']:.3f}, of a constant"
            f" {measures['brier_constant']:.3f}"
        )


@dataclass(frozen=True)
class Examples:
    """Different segments of all prefixes, with how often each was drawn."""

    problem: Tensor  # number of the problem [N]
    states: Tensor  # last states that predict the segment [N, K, D]
    valid: Tensor  # tokens of the segment [N, K]
    share: Tensor  # semantic probability under the model [N]
    drawn: dict[str, Tensor]  # how often each model drew it [N], by role

    def of(self, mask: Tensor, writers: Sequence[str]) -> TensorDataset:
        """States, tokens, shares and counts of the segments under `mask` that these models drew."""
        count = torch.stack([self.drawn[role] for role in writers]).sum(0)
        at = mask & (count > 0)
        return TensorDataset(self.states[at], self.valid[at], self.share[at], count[at].float())


def examples_of(
    rows: Sequence[dict[str, Any]],
    model: PreTrainedModel,
    role: str,
    judge: str,
    limit: int,
) -> Examples:
    """What a model's states say about every different segment, labelled by `judge`, where it
    finished one itself.
    """
    prefixes = []
    segments = []
    problems = []
    labels = []
    drawn: dict[str, list[int]] = {name: [] for name in ROLES}
    for row in rows:
        if role not in row["roles"]:
            continue
        distinct = []
        for segment, share in zip(row["segments"], shares(row, judge, role)):
            if segment not in distinct:
                distinct.append(segment)
                labels.append(share)
        prefixes += [row["prompt"] + row["answer"]] * len(distinct)
        problems += [row["problem"]] * len(distinct)
        segments += distinct
        writers = list(zip(row["roles"], row["segments"]))
        for name in ROLES:
            drawn[name] += [writers.count((name, segment)) for segment in distinct]
    states, valid = read_states(model, prefixes, segments, limit)
    counts = {name: torch.tensor(count) for name, count in drawn.items()}
    return Examples(torch.tensor(problems), states, valid, torch.tensor(labels), counts)


@torch.no_grad()  # not inference mode: probes are trained on these
def read_states(
    model: PreTrainedModel,
    prefixes: Sequence[list[int]],
    segments: Sequence[list[int]],
    limit: int,
    batch: int = 64,
) -> tuple[Tensor, Tensor]:
    """States [N, limit, D] that predict the tokens of each segment, and where there is one [N,
    limit].
    """
    states = torch.zeros(len(segments), limit, model.config.get_text_config().hidden_size)
    lengths = torch.tensor([len(segment) for segment in segments])
    for start in range(0, len(segments), batch):
        places = range(start, min(start + batch, len(segments)))
        # The last token predicts what follows.
        texts = [prefixes[n] + segments[n][:-1] for n in places]
        keep = int(lengths[start : start + batch].max())
        with tap(model, ["post"]) as seen:
            Reader(model, len(texts)).read(*left_padded(texts, model.device), keep=keep)
        for state, n in zip(seen["post"], places):
            size = len(segments[n])
            states[n, :size] = state[-size:].float().cpu()
    return states, torch.arange(limit) < lengths[:, None]


def fit_and_measure(examples: Examples, role: str, params: Params) -> tuple[Probe, dict[str, Any]]:
    """The probe of a model, and its measures on segments of each writer, of problems that it has
    not seen.
    """
    parts = split_by_problem(examples.problem, params.train, params.seed)
    writers = ROLES if role == "target" else ("draft",)
    for name in ("train", "validation", "test"):
        for writer in writers:
            if not bool(examples.drawn[writer][getattr(parts, name)].any()):
                raise UserError(
                    f"The {writer} finished no segment in the part `{name}`. Raise"
                    " segments.problems."
                )
    train = examples.of(parts.train | parts.calibration, writers)
    validation = examples.of(parts.validation, writers)
    probe = fit_probe(train, validation, params.segments, params.seed)
    report = {}
    for writer in writers:
        _, _, share, count = examples.of(parts.train, (writer,)).tensors
        base = float((share * count).sum() / count.sum())
        report[writer] = measure(probe, examples.of(parts.test, (writer,)), base)
    return probe, report


class ProbeTraining(pl.LightningModule):
    """Loss and optimiser; a segment counts as often as it was drawn."""

    def __init__(self, probe: nn.Module, lr: float) -> None:
        super().__init__()
        self.probe = probe
        self.lr = lr

    def training_step(self, batch: list[Tensor], _index: int) -> Tensor:
        return self.loss(batch)

    def validation_step(self, batch: list[Tensor], _index: int) -> None:
        self.log("validation_loss", self.loss(batch), on_epoch=True, batch_size=int(batch[3].sum()))

    def loss(self, batch: list[Tensor]) -> Tensor:
        states, valid, share, count = batch
        logits = self.probe(states, valid)
        losses = binary_cross_entropy_with_logits(logits, share, reduction="none")
        return (losses * count).sum() / count.sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=0.01)


def fit_probe(
    train: TensorDataset,
    validation: TensorDataset,
    params: SegmentParams,
    seed: int,
) -> Probe:
    """A probe trained on what `Examples.of` returns."""
    pl.seed_everything(seed, verbose=False)
    probe = Probe(train.tensors[0].shape[-1], params.hidden, params.pooling)
    training = ProbeTraining(probe, params.lr)
    order = torch.Generator().manual_seed(seed)
    batches = DataLoader(train, params.batch_size, shuffle=True, generator=order)
    unseen = DataLoader(validation, 1024)
    train_best(training, params.epochs, params.patience, batches, unseen)
    return probe.cpu().eval()


@torch.no_grad()
def measure(probe: Probe, test: TensorDataset, base: float) -> dict[str, Any]:
    """Brier score against the shares, that of the constant `base`, reliability and correlation,
    each draw counted.
    """
    states, valid, share, count = test.tensors
    probability = probe(states, valid).sigmoid()
    weight = count / count.sum()
    bins = (probability * BINS).long().clamp_max(BINS - 1)
    curve = []
    for number in bins.unique().tolist():
        mask = bins == number
        mass = weight[mask].sum()
        predicted = (probability * weight)[mask].sum() / mass
        observed = (share * weight)[mask].sum() / mass
        curve.append(
            {"weight": float(mass), "predicted": float(predicted), "found": float(observed)}
        )
    x = probability - (probability * weight).sum()
    y = share - (share * weight).sum()
    scale = ((x * x * weight).sum() * (y * y * weight).sum()).sqrt()
    correlation = float((x * y * weight).sum() / scale) if scale > 1e-12 else 0.0
    return {
        "segments": int(count.sum()),
        "brier": float(((probability - share) ** 2 * weight).sum()),
        "brier_constant": float(((base - share) ** 2 * weight).sum()),
        "ece": sum(entry["weight"] * abs(entry["predicted"] - entry["found"]) for entry in curve),
        "correlation": correlation,  # 0 where either is constant
        "reliability": curve,
    }


if __name__ == "__main__":
    run(main)
