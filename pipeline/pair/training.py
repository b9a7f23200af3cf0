"""Teach models with PyTorch Lightning: those of the embedded pair from scratch, and a draft of some
layers of a larger model to write as a target does. `python -m pipeline.pair.training FOLDER
--layers 6` makes such a draft in a new folder from the training prompts and the strict answers that
the stage `reference` has written."""

import logging
import random
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import pytorch_lightning as pl
import torch
import typer
from pytorch_lightning.callbacks import TQDMProgressBar
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from gistgate.core.features import decoder_layers
from gistgate.core.files import read_json_lines, write_atomic
from gistgate.core.utils import UserError
from pipeline.pair.pair import load_model, load_tokenizer, read_pair
from pipeline.pair.world import CONTEXT, answer_of, padded_size, prompt_text
from pipeline.params import ModelTraining, PairTrainingParams, read_params
from pipeline.paths import prompts_of, reference_of
from pipeline.run import run

COEFFICIENTS = (
    3.4445,
    -4.7750,
    2.0315,
)  # quintic iteration: singular values into about [0.7, 1.2] in five steps
IGNORED = -100  # label of positions without loss: the question and the padding


def lightning(
    refresh_rate: int, callbacks: Sequence[pl.Callback] = (), **options: Any
) -> pl.Trainer:
    """A trainer that keeps no log and says nothing but its bar, which so many steps refresh; 0 and
    a log have none.
    """
    for noisy in (
        "lightning.pytorch",
        "pytorch_lightning",
        "pytorch_lightning.utilities.rank_zero",
    ):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="pytorch_lightning")  # advice on workers and loggers
    shown = TQDMProgressBar(refresh_rate=refresh_rate if sys.stdout.isatty() else 0)
    quiet: dict[str, Any] = {
        "logger": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
    }
    return pl.Trainer(callbacks=[*callbacks, shown], **quiet, **options)


def orthogonalise(g_BMN: Tensor, steps: int = 5) -> Tensor:
    """Replace the singular values of each matrix by about 1; needs M <= N. Shapes [B, M, N] -> [B,
    M, N].
    """
    a, b, c = COEFFICIENTS
    x: Tensor = g_BMN / (g_BMN.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


class Muon(torch.optim.Optimizer):
    """Muon (Jordan et al., 2024). Twice as fast as torch.optim.Muon, which treats one matrix at a
    time and always in
    bfloat16: here matrices of equal shape share one batched product in a chosen precision."""

    def __init__(
        self, params: Iterable[Tensor], lr: float = 0.02, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": 0.95})
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient; Lightning's closure computes nothing."""
        loss = closure() if closure is not None else None
        for group in self.param_groups:
            by_shape: dict[tuple[int, ...], list[tuple[Tensor, Tensor]]] = defaultdict(list)
            for param in (one for one in group["params"] if one.grad is not None):
                average = self.state[param].setdefault("momentum", torch.zeros_like(param))
                average.lerp_(param.grad, 1 - group["momentum"])
                update = param.grad.lerp(average, group["momentum"])  # as of Nesterov
                wide = update if param.shape[0] <= param.shape[1] else update.mT
                by_shape[tuple(wide.shape)].append((param, wide))
            for pairs in by_shape.values():
                updates = orthogonalise(torch.stack([wide for _, wide in pairs]).to(self.dtype))
                for (param, wide), update in zip(pairs, updates, strict=True):
                    rows, columns = param.shape
                    update = update if wide.shape == param.shape else update.mT
                    param.add_(
                        update.to(param.dtype), alpha=-group["lr"] * max(1.0, rows / columns) ** 0.5
                    )
        return loss


def encode(
    tokenizer: PreTrainedTokenizerBase, documents: Sequence[dict[str, str]]
) -> list[tuple[list[int], int]]:
    """Ids of each document with the end token, and the length of its question in tokens."""
    prompts = tokenizer(
        [prompt_text(doc["question"]) for doc in documents], add_special_tokens=False
    )["input_ids"]
    answers = tokenizer([f" {doc['answer']}" for doc in documents], add_special_tokens=False)[
        "input_ids"
    ]
    eos = tokenizer.eos_token_id
    return [
        ([*prompt, *answer, eos], len(prompt))
        for prompt, answer in zip(prompts, answers, strict=True)
    ]


def plan(lengths: Sequence[int], batch_size: int, steps: int, seed: int) -> list[list[int]]:
    """Which documents form the batch of each step. A pass shuffles the documents, sorts
    neighbourhoods of 16 batches by length and shuffles the batches again, so a batch pads little
    and still is random."""
    rng = random.Random(seed)
    batches = list[list[int]]()
    order = list(range(len(lengths)))
    size = min(batch_size, len(order))
    while len(batches) < steps:
        rng.shuffle(order)
        of_pass = []
        for begin in range(0, len(order), 16 * size):
            near = sorted(order[begin : begin + 16 * size], key=lambda i: lengths[i])
            of_pass += [near[i : i + size] for i in range(0, len(near) - size + 1, size)]
        rng.shuffle(of_pass)
        batches += of_pass
    return batches[:steps]


def collate(rows: Sequence[tuple[list[int], int]], pad: int) -> tuple[Tensor, Tensor]:
    """Ids and labels [B, T] of a batch, padded on the right; only solutions bear loss."""
    width = max(len(ids) for ids, _ in rows)
    ids_BT = torch.full((len(rows), width), pad)
    labels_BT = torch.full((len(rows), width), IGNORED)
    for i, (ids, prompt) in enumerate(rows):
        ids_BT[i, : len(ids)] = torch.tensor(ids)
        labels_BT[i, prompt : len(ids)] = torch.tensor(ids[prompt:])
    return ids_BT, labels_BT


def make_model(
    size: ModelTraining, tokenizer: PreTrainedTokenizerBase, seed: int
) -> LlamaForCausalLM:
    """A fresh Llama of the given size with tied embeddings."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=padded_size(tokenizer),
        hidden_size=size.hidden_size,
        intermediate_size=size.intermediate_size,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        initializer_range=0.02,
        **{
            name: getattr(tokenizer, name)
            for name in ("pad_token_id", "bos_token_id", "eos_token_id")
        },
    )
    model = LlamaForCausalLM(config)
    model.set_attn_implementation(
        "eager"
    )  # on a CPU twice as fast backwards as the fused kernel for texts this short
    return model


def has_fast_bfloat16() -> bool:
    """Whether bfloat16 products are faster than float32 here; AVX-512 alone takes twice as long for
    them.
    """
    if torch.cuda.is_available():
        return bool(torch.cuda.is_bf16_supported())
    capabilities: dict[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capabilities.get("amx_bf16", False) or capabilities.get("avx512_bf16", False))


class LanguageModule(pl.LightningModule):
    """Next-token loss on solutions; Muon for the matrices, Adam for embeddings and norms."""

    def __init__(self, model: LlamaForCausalLM, size: ModelTraining, warmup: float) -> None:
        super().__init__()
        self.model = model
        self.size = size
        self.warmup = warmup
        self.fast_bfloat16 = has_fast_bfloat16()
        self.automatic_optimization = False  # two optimisers, one backward pass
        self.losses: list[float] = []

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        """One step of both optimisers; logits are made for the positions with a label alone."""
        ids_BT, labels_BT = batch
        step = len(self.losses)
        steps = self.size.steps
        rise = max(
            1, round(self.warmup * steps)
        )  # learning rates rise linearly, then go linearly down to 0
        factor = min((step + 1) / rise, (steps - step) / max(1, steps - rise), 1.0)
        with torch.autocast(ids_BT.device.type, torch.bfloat16, enabled=self.fast_bfloat16):
            hidden_BTD = self.model.model(input_ids=ids_BT).last_hidden_state
            has_loss = labels_BT[:, 1:] != IGNORED
            logits_NV = self.model.lm_head(hidden_BTD[:, :-1][has_loss])
        loss = torch.nn.functional.cross_entropy(logits_NV.float(), labels_BT[:, 1:][has_loss])
        self.manual_backward(loss)
        for optimizer, peak in zip(
            self.optimizers(), (self.size.matrix_lr, self.size.lr), strict=True
        ):
            for group in optimizer.param_groups:
                group["lr"] = peak * factor
            optimizer.step()
            optimizer.zero_grad()
        self.log("loss", loss.detach(), prog_bar=True)
        self.losses.append(float(loss.detach()))
        return loss.detach()

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        """Muon for the matrices of the layers, Adam for all else."""
        named = list(self.model.named_parameters())
        matrices = [p for name, p in named if p.ndim == 2 and "embed" not in name]
        others = [p for name, p in named if p.ndim != 2 or "embed" in name]
        dtype = torch.bfloat16 if self.fast_bfloat16 else torch.float32
        return [
            Muon(matrices, dtype=dtype),
            torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=0.0),
        ]


def train_model(
    name: str,
    size: ModelTraining,
    params: PairTrainingParams,
    tokenizer: PreTrainedTokenizerBase,
    documents: Sequence[dict[str, str]],
    seed: int,
) -> tuple[LlamaForCausalLM, list[float]]:
    """Train a model on `documents`; returns the loss of every step as well."""
    model = make_model(size, tokenizer, seed).train()
    rows = encode(tokenizer, documents)
    planned = plan([len(ids) for ids, _ in rows], size.batch_size, size.steps, seed)
    batches: Any = [[rows[i] for i in batch] for batch in planned]
    module = LanguageModule(model, size, params.warmup)
    shown = 10 if name == "target" else 0  # both train at once, and the target takes longer
    trainer = lightning(
        shown, max_epochs=1, accelerator="auto", devices=1, enable_checkpointing=False
    )
    trainer.fit(
        module,
        DataLoader(batches, None, collate_fn=partial(collate, pad=model.config.pad_token_id)),
    )
    return model.eval().cpu(), module.losses


def accuracy(
    tokenizer: PreTrainedTokenizerBase, solutions: Sequence[list[int]], answers: Sequence[str]
) -> float:
    """Share of the solutions whose `#### answer` is the one of `answers`."""
    texts = tokenizer.batch_decode(list(solutions), skip_special_tokens=True)
    right = [
        answer_of(text) == answer_of(answer) for text, answer in zip(texts, answers, strict=True)
    ]
    return sum(right) / len(right)


Rows = Sequence[tuple[list[int], int]]  # ids of a text and how many of them are its prompt
PROBED = 24  # texts that show which layers matter
CHECKED = 10  # one text in so many is not trained on: the agreement is measured on it


def cut(model: PreTrainedModel, layers: int, rows: Rows) -> list[int]:
    """Leave a model, in place, the layers that turn the states of these texts most (1 minus the
    cosine of what a layer reads and writes, arXiv 2403.03853), and say which; only they and the
    last norm are trained, in float32."""
    found = decoder_layers(model)
    config = model.config.get_text_config()
    if not 0 < layers < len(found):
        raise UserError(
            f"The model has {len(found)} layers, of which {layers} cannot be kept. Keep fewer, at"
            " least 1."
        )
    turned = torch.zeros(len(found), device=model.device)
    with torch.no_grad():
        for ids, _ in rows:
            read = torch.tensor([ids], device=model.device)
            # The last of these states is behind the norm, which counts as part of the last layer.
            states = model.base_model(
                input_ids=read, use_cache=False, output_hidden_states=True
            ).hidden_states
            turned += torch.stack(
                [1 - torch.cosine_similarity(a, b, -1).mean() for a, b in pairwise(states)]
            )
    kept = sorted(turned.argsort(descending=True)[:layers].tolist())
    for place in sorted({*range(len(found))} - {*kept}, reverse=True):
        del found[place]
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[place] for place in kept]
    fixed = {
        id(one.weight) for one in (model.get_input_embeddings(), model.get_output_embeddings())
    }
    for parameter in model.float().parameters():
        parameter.requires_grad_(id(parameter) not in fixed)
    return kept


class Student(pl.LightningModule):
    """Next-token loss on a target's own answers (sequence-level distillation, arXiv 1606.07947)
    with AdamW.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        rows: Rows,
        checked: Rows,
        batch_size: int,
        epochs: int,
        lr: float,
    ):
        super().__init__()
        self.model = model
        self.rows = rows
        self.checked = checked
        self.lr = lr
        lengths = [len(ids) for ids, _ in rows]
        steps = epochs * max(1, len(rows) // batch_size)
        self.planned = plan(lengths, batch_size, steps, seed=0)

    def batches(self, rows: Rows, planned: Sequence[Sequence[int]]) -> Any:
        """These rows as batches of ids and labels, both [B, T]."""
        dealt: Any = [[rows[i] for i in batch] for batch in planned]
        return DataLoader(dealt, None, collate_fn=partial(collate, pad=0))

    def train_dataloader(self) -> Any:
        """The planned batches."""
        return self.batches(self.rows, self.planned)

    def predictions(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Logits [N, V] at the tokens of the answers, and these tokens [N]. Padding stands behind
        all that counts.
        """
        ids_BT, labels_BT = batch
        hidden_BTD = self.model.base_model(input_ids=ids_BT, use_cache=False).last_hidden_state
        counts = labels_BT[:, 1:] != IGNORED
        return (
            self.model.get_output_embeddings()(hidden_BTD[:, :-1][counts]),
            labels_BT[:, 1:][counts],
        )

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        """The loss of a batch."""
        logits_NV, tokens_N = self.predictions(batch)
        loss = torch.nn.functional.cross_entropy(logits_NV.float(), tokens_N)
        self.log("loss", loss, prog_bar=True)
        return loss

    def agreement(self) -> float:
        """In which share of places of the texts that are not trained on the model's first choice is
        the target's.
        """
        right = 0
        every = 0
        with torch.inference_mode():
            for ids_BT, labels_BT in self.batches(
                self.checked, [[place] for place in range(len(self.checked))]
            ):
                logits_NV, tokens_N = self.predictions(
                    (ids_BT.to(self.device), labels_BT.to(self.device))
                )
                right = right + int((logits_NV.argmax(-1) == tokens_N).sum())
                every = every + len(tokens_N)
        return right / every

    def configure_optimizers(self) -> Any:
        """AdamW, with a rate that rises for a twentieth of the steps and falls to nothing."""
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        steps = len(self.planned)
        optimizer = torch.optim.AdamW(trained, betas=(0.9, 0.95), weight_decay=0.01)
        rise = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, self.lr, max(2, steps), pct_start=0.05
        )
        return [optimizer], [{"scheduler": rise, "interval": "step"}]


def main(
    folder: Path,
    layers: Annotated[
        int, typer.Option(help="Layers that the draft keeps: those that change states most.", min=1)
    ],
    of: Annotated[
        str, typer.Option(help="Model of the pair that is cut: draft or target.")
    ] = "draft",
    epochs: Annotated[int, typer.Option(help="Passes over the answers.", min=1)] = 3,
    batch_size: Annotated[int, typer.Option(help="Answers in a step.", min=1)] = 8,
    lr: Annotated[float, typer.Option(help="Peak learning rate.")] = 3e-4,
) -> None:
    """Cut a model of the pair, train it on the target's answers and write it to a new folder."""
    source = read_pair(read_params().pair)
    if folder.exists():
        raise UserError(f"{folder} exists already. Name a new folder.")
    if of not in source.roles:
        raise UserError(
            f"The pair has no model '{of}' to cut. Use --of with one of: {', '.join(source.roles)}."
        )
    texts = zip(*map(read_json_lines, (prompts_of("train"), reference_of("train"))), strict=True)
    rows = [([*prompt["ids"], *answer["ids"]], len(prompt["ids"])) for prompt, answer in texts]
    pl.seed_everything(0, verbose=False)
    whole = replace(source.roles[of], quantise="none")
    model = load_model(whole)
    dtype = getattr(torch, whole.dtype)
    kept = [row for place, row in enumerate(rows) if place % CHECKED]
    left = cut(model, layers, kept[:PROBED])
    student = Student(model, kept, rows[::CHECKED], batch_size, epochs, lr)
    precision: Any = "bf16-mixed" if has_fast_bfloat16() else "32-true"
    options: dict[str, Any] = {
        "max_epochs": 1,
        "devices": 1,
        "enable_checkpointing": False,
        "gradient_clip_val": 1.0,
    }
    before = student.agreement()
    lightning(10, accelerator="auto", precision=precision, **options).fit(student)
    behind = student.agreement()

    def write(part: Path) -> None:
        model.to(dtype).save_pretrained(part)
        load_tokenizer(source).save_pretrained(part)

    write_atomic(folder, write)
    print(
        f"{folder} is written: layers {', '.join(map(str, left))}, trained on {len(kept)} answers."
        f" On {len(rows[::CHECKED])} others its first choice is the target's token in {behind:.1%}"
        f" of the places, before the training in {before:.1%}."
    )


if __name__ == "__main__":
    run(main)
