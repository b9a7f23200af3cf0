"""A draft that is cut from a larger model and learns to write as the target does: few layers, and
the output layer of the tokens that it may propose. Axis letters: N labelled tokens, D width, V
vocabulary, S tokens of the draft vocabulary.
"""

import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy
from transformers import PreTrainedModel

from gistgate.core.features import decoder_layers
from gistgate.models.lighter import SubsetHead
from pipeline.pair.pair import DraftSource
from pipeline.pair.training import (
    IGNORED,
    Batch,
    Example,
    collate,
    has_fast_bfloat16,
    labelled_states,
    lightning,
    loader,
    plan,
)

PROBED = 24  # texts that show which layers matter


def cut(model: PreTrainedModel, num: int, examples: Sequence[Example]) -> list[int]:
    """Leave a model, in place, the layers that turn the states of the first of these texts most (1
    minus the cosine of what a layer reads and writes, arXiv 2403.03853), and say which; only they
    and the last norm are trained, in float32.
    """
    layers = decoder_layers(model)
    turned = torch.zeros(len(layers), device=model.device)
    with torch.no_grad():
        for ids, _ in examples[:PROBED]:
            # The last of these states is behind the norm, which counts as part of the last layer.
            states = model.base_model(
                input_ids=torch.tensor([ids], device=model.device),
                use_cache=False,
                output_hidden_states=True,
            ).hidden_states
            turns = [1 - cosine_similarity(a, b, -1).mean() for a, b in pairwise(states)]
            turned += torch.stack(turns)
    places = sorted(turned.argsort(descending=True)[:num].tolist())
    for place in reversed(range(len(layers))):
        if place not in places:
            del layers[place]
    config = model.config.get_text_config()
    config.num_hidden_layers = num
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[place] for place in places]
    model.float().requires_grad_(True)
    for embeddings in (model.get_input_embeddings(), model.get_output_embeddings()):
        embeddings.weight.requires_grad_(False)
    return places


class Proposals(nn.Module):
    """The output layer of the tokens that a draft may propose: a part of the vocabulary, or all."""

    def __init__(self, model: PreTrainedModel, ids: Sequence[int] | None = None) -> None:
        super().__init__()
        whole: nn.Linear = model.get_output_embeddings()
        num = whole.out_features
        self.part = whole if ids is None else SubsetHead(whole, ids).part
        self.ids_S: Tensor
        self.register_buffer("ids_S", torch.arange(num) if ids is None else torch.tensor(ids))
        self.place_V: Tensor
        self.register_buffer("place_V", torch.full((num,), IGNORED))
        self.place_V[self.ids_S] = torch.arange(len(self.ids_S))
        self.to(whole.weight.device)

    def loss(self, states_ND: Tensor, tokens_N: Tensor) -> Tensor:
        """Next-token loss; tokens that may not be proposed bear none."""
        logits_NS = self.part(states_ND).float()
        return cross_entropy(logits_NS, self.place_V[tokens_N], ignore_index=IGNORED)

    def choices(self, states_ND: Tensor) -> Tensor:
        """The most probable tokens [N]."""
        return self.ids_S[self.part(states_ND).argmax(-1)]


@torch.inference_mode()
def agreement(model: PreTrainedModel, head: Proposals, examples: Sequence[Example]) -> float:
    """In which share of places of these texts the model's first choice is the target's token."""
    right = 0
    total = 0
    for example in examples:
        batch = [part.to(model.device) for part in collate([example])]
        states_ND, tokens_N = labelled_states(model, batch)
        right += int((head.choices(states_ND) == tokens_N).sum())
        total += len(tokens_N)
    return right / total


class Student(pl.LightningModule):
    """Next-token loss on a target's own answers (sequence-level distillation, arXiv 1606.07947)
    with AdamW.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        head: Proposals,
        examples: Sequence[Example],
        source: DraftSource,
        seed: int,
    ) -> None:
        super().__init__()
        self.model = model
        self.head = head
        self.examples = examples
        self.source = source
        self.steps = max(1, len(examples) // source.batch_size)  # of a pass
        lengths = [len(ids) for ids, _ in examples]
        self.planned = plan(lengths, source.batch_size, source.epochs * self.steps, seed)
        self.losses: list[float] = []
        self.seconds = 0.0

    def train_dataloader(self) -> Any:
        """The batches of this pass."""
        start = self.current_epoch * self.steps
        return loader(self.examples, self.planned[start : start + self.steps])

    def on_train_epoch_start(self) -> None:
        """The clock of a pass starts."""
        self.started = time.perf_counter()

    def training_step(self, batch: Batch, index: int) -> Tensor:
        """The loss of a batch."""
        loss = self.head.loss(*labelled_states(self.model, batch))
        self.log("loss", loss, prog_bar=True)
        self.losses.append(float(loss.detach()))
        return loss

    def on_train_epoch_end(self) -> None:
        """What the pass took, and its mean loss."""
        seconds = time.perf_counter() - self.started
        self.seconds += seconds
        number = self.current_epoch + 1
        loss = fmean(self.losses[-self.steps :])
        print(f"pass {number} of {self.source.epochs}: loss {loss:.3f}, {seconds:.0f} s")

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep losses and seconds for the report."""
        checkpoint |= {"losses": self.losses, "seconds": self.seconds}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Go on with them."""
        self.losses = checkpoint["losses"]
        self.seconds = checkpoint["seconds"]

    def configure_optimizers(self) -> Any:
        """AdamW, with a rate that rises for a twentieth of the steps and falls to nothing."""
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(trained, betas=(0.9, 0.95), weight_decay=0.01)
        steps = max(3, len(self.planned))
        rise = max(0.05, 2 / steps)
        rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, self.source.lr, steps, pct_start=rise)
        return [optimizer], [{"scheduler": rate, "interval": "step"}]


def teach(student: Student, folder: Path) -> None:
    """Train a student; a training that was interrupted goes on behind the last pass that the
    folder holds.
    """
    passes = sorted(folder.glob("*.ckpt"), key=lambda path: path.stat().st_mtime)
    trainer = lightning(
        10,
        [ModelCheckpoint(folder, filename="{epoch}")],
        max_epochs=student.source.epochs,
        devices=1,
        precision="bf16-mixed" if has_fast_bfloat16() else "32-true",
        gradient_clip_val=1.0,
        reload_dataloaders_every_n_epochs=1,
        default_root_dir=folder,
    )
    trainer.fit(student, ckpt_path=passes[-1] if passes else None, weights_only=True)
