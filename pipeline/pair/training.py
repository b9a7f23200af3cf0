"""Teach models with PyTorch Lightning: those of the embedded pair from scratch, and a draft of some
layers of a larger model to write as a target does. `python -m pipeline.pair.training FOLDER
--layers 6` makes such a draft in a new folder from the training prompts and the strict answers that
the stage `reference` has written.
"""

import logging
import random
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import pytorch_lightning as pl
import torch
import typer
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint, TQDMProgressBar
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy
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

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Quintic iteration: singular values into about [0.7, 1.2] in five steps."""
IGNORED = -100  # label of positions without loss: the question and the padding
NOISY = ("lightning.pytorch", "pytorch_lightning", "pytorch_lightning.utilities.rank_zero")
"""Loggers that say what a trainer is about to do."""
Example = tuple[list[int], int]  # ids of a text, and how many of them are its prompt
Batch = tuple[Tensor, Tensor]  # ids and labels [B, T]


def lightning(
    refresh_rate: int,
    callbacks: Sequence[pl.Callback] = (),
    **options: Any,
) -> pl.Trainer:
    """A trainer that keeps no log and says nothing but its bar, which so many steps refresh; 0 and
    a log have none.
    """
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="pytorch_lightning")  # advice on workers and loggers
    progress = TQDMProgressBar(refresh_rate if sys.stdout.isatty() else 0)
    options |= {"logger": False, "enable_model_summary": False, "num_sanity_val_steps": 0}
    return pl.Trainer(callbacks=[*callbacks, progress], **options)


def train_best(
    module: pl.LightningModule,
    epochs: int,
    patience: int,
    *loaders: DataLoader[Any],
    **options: Any,
) -> None:
    """Train a module until its `validation_loss` has not fallen for `patience` epochs, and give it
    the weights with which that was smallest; `loaders` as of Lightning's `fit`.
    """
    with TemporaryDirectory() as folder:
        best = ModelCheckpoint(folder, monitor="validation_loss")
        stop = EarlyStopping("validation_loss", patience=patience)
        options |= {"max_epochs": epochs, "devices": 1, "default_root_dir": folder}
        lightning(20, [best, stop], **options).fit(module, *loaders)
        state = torch.load(best.best_model_path, weights_only=True)["state_dict"]
    module.load_state_dict(state)


def orthogonalise(g_BMN: Tensor) -> Tensor:
    """Replace the singular values of each matrix by about 1; needs M <= N. Shapes [B, M, N] -> [B,
    M, N].
    """
    a, b, c = COEFFICIENTS
    x: Tensor = g_BMN / (g_BMN.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


class Muon(torch.optim.Optimizer):
    """Muon (Jordan et al., 2024). Twice as fast as torch.optim.Muon, which treats one matrix at a
    time and always in bfloat16: here matrices of equal shape share one batched product in a chosen
    precision.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 0.02,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": 0.95})
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient; Lightning's closure computes nothing."""
        loss = None if closure is None else closure()
        for group in self.param_groups:
            by_shape = defaultdict(list)
            for matrix in group["params"]:
                if matrix.grad is None:
                    continue
                average = self.state[matrix].setdefault("momentum", torch.zeros_like(matrix))
                average.lerp_(matrix.grad, 1 - group["momentum"])
                update = matrix.grad.lerp(average, group["momentum"])  # as of Nesterov
                rows, columns = matrix.shape
                if rows > columns:  # seen from the side it is wide
                    matrix = matrix.mT
                    update = update.mT
                rate = group["lr"] * max(1.0, rows / columns) ** 0.5
                by_shape[matrix.shape].append((matrix, update, rate))
            for entries in by_shape.values():
                matrices, wide, rates = zip(*entries)
                updates = orthogonalise(torch.stack(wide).to(self.dtype))
                for matrix, update, rate in zip(matrices, updates, rates):
                    matrix.add_(update.to(matrix.dtype), alpha=-rate)
        return loss


def encode(
    tokenizer: PreTrainedTokenizerBase,
    documents: Sequence[dict[str, str]],
) -> list[Example]:
    """Ids of each document with the end token, and the length of its question in tokens."""

    def ids_of(texts: list[str]) -> Any:
        return tokenizer(texts, add_special_tokens=False)["input_ids"]

    prompts = ids_of([prompt_text(doc["question"]) for doc in documents])
    answers = ids_of([f" {doc['answer']}" for doc in documents])
    eos = tokenizer.eos_token_id
    return [([*prompt, *answer, eos], len(prompt)) for prompt, answer in zip(prompts, answers)]


def plan(lengths: Sequence[int], batch_size: int, steps: int, seed: int) -> list[list[int]]:
    """Which documents form the batch of each step. A pass shuffles the documents, sorts
    neighbourhoods of 16 batches by length and shuffles the batches again, so a batch pads little
    and still is random.
    """
    rng = random.Random(seed)
    batches = list[list[int]]()
    order = list(range(len(lengths)))
    size = min(batch_size, len(order))
    while len(batches) < steps:
        rng.shuffle(order)
        of_pass = []
        for begin in range(0, len(order), 16 * size):
            near = sorted(order[begin : begin + 16 * size], key=lengths.__getitem__)
            of_pass += [near[i : i + size] for i in range(0, len(near) - size + 1, size)]
        rng.shuffle(of_pass)
        batches += of_pass
    return batches[:steps]


def collate(examples: Sequence[Example]) -> Batch:
    """A batch, padded with zeros on the right; only solutions bear loss."""
    width = max(len(ids) for ids, _ in examples)
    ids_BT = torch.zeros(len(examples), width, dtype=torch.long)
    labels_BT = torch.full_like(ids_BT, IGNORED)
    for row, (ids, prompt) in enumerate(examples):
        ids_BT[row, : len(ids)] = torch.tensor(ids)
        labels_BT[row, prompt : len(ids)] = torch.tensor(ids[prompt:])
    return ids_BT, labels_BT


def loader(examples: Sequence[Example], planned: Any) -> Any:
    """The planned batches of these examples."""
    return DataLoader(planned, None, collate_fn=lambda batch: collate([examples[i] for i in batch]))


def predictions(model: PreTrainedModel, batch: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Logits [N, V] at the tokens with a label, and these tokens [N]. Padding stands behind all
    that counts.
    """
    ids_BT, labels_BT = batch
    hidden_BTD = model.base_model(input_ids=ids_BT, use_cache=False).last_hidden_state[:, :-1]
    next_BT = labels_BT[:, 1:]
    counts = next_BT != IGNORED
    return model.get_output_embeddings()(hidden_BTD[counts]), next_BT[counts]


def make_model(
    size: ModelTraining,
    tokenizer: PreTrainedTokenizerBase,
    seed: int,
) -> LlamaForCausalLM:
    """A fresh Llama of the given size with tied embeddings."""
    torch.manual_seed(seed)
    special = ("pad_token_id", "bos_token_id", "eos_token_id")
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
        **{name: getattr(tokenizer, name) for name in special},
    )
    model = LlamaForCausalLM(config)
    # On a CPU twice as fast backwards as the fused kernel for texts this short.
    model.set_attn_implementation("eager")
    return model


def has_fast_bfloat16() -> bool:
    """Whether bfloat16 products are faster than float32 here; AVX-512 alone takes twice as long for
    them.
    """
    if torch.cuda.is_available():
        return bool(torch.cuda.is_bf16_supported())
    capabilities: dict[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()
    return any(capabilities.get(name, False) for name in ("amx_bf16", "avx512_bf16"))


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

    def training_step(self, batch: Batch, index: int) -> None:
        """One step of both optimisers; logits are made for the positions with a label alone."""
        steps = self.size.steps
        step = len(self.losses)
        # Learning rates rise linearly, then go linearly down to 0.
        rise = max(1, round(self.warmup * steps))
        factor = min((step + 1) / rise, (steps - step) / max(1, steps - rise), 1.0)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.fast_bfloat16):
            logits_NV, tokens_N = predictions(self.model, batch)
        loss = cross_entropy(logits_NV.float(), tokens_N)
        self.manual_backward(loss)
        for optimizer, peak in zip(self.optimizers(), (self.size.matrix_lr, self.size.lr)):
            for group in optimizer.param_groups:
                group["lr"] = peak * factor
            optimizer.step()
            optimizer.zero_grad()
        self.log("loss", loss.detach(), prog_bar=True)
        self.losses.append(float(loss.detach()))

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        """Muon for the matrices of the layers, Adam for all else."""
        matrices = []
        vectors = []
        for name, parameter in self.model.named_parameters():
            if parameter.ndim == 2 and "embed" not in name:
                matrices.append(parameter)
            else:
                vectors.append(parameter)
        dtype = torch.bfloat16 if self.fast_bfloat16 else torch.float32
        adam = torch.optim.AdamW(vectors, betas=(0.9, 0.95), weight_decay=0.0)
        return [Muon(matrices, dtype=dtype), adam]


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
    examples = encode(tokenizer, documents)
    planned = plan([len(ids) for ids, _ in examples], size.batch_size, size.steps, seed)
    module = LanguageModule(model, size, params.warmup)
    refresh_rate = 10 if name == "target" else 0  # both train at once, and the target takes longer
    trainer = lightning(refresh_rate, max_epochs=1, devices=1, enable_checkpointing=False)
    trainer.fit(module, loader(examples, planned))
    return model.eval().cpu(), module.losses


def accuracy(
    tokenizer: PreTrainedTokenizerBase,
    solutions: Sequence[list[int]],
    answers: Sequence[str],
) -> float:
    """Share of the solutions whose `#### answer` is the one of `answers`."""
    texts = tokenizer.batch_decode(list(solutions), skip_special_tokens=True)
    right = [answer_of(text) == answer_of(answer) for text, answer in zip(texts, answers)]
    return sum(right) / len(right)


PROBED = 24  # texts that show which layers matter
CHECKED = 10  # one text in so many is not trained on: the agreement is measured on it


def cut(model: PreTrainedModel, num: int, examples: Sequence[Example]) -> list[int]:
    """Leave a model, in place, the layers that turn the states of these texts most (1 minus the
    cosine of what a layer reads and writes, arXiv 2403.03853), and say which; only they and the
    last norm are trained, in float32.
    """
    layers = decoder_layers(model)
    if not 0 < num < len(layers):
        raise UserError(
            f"The model has {len(layers)} layers, of which {num} cannot be kept. Keep fewer, at"
            " least 1."
        )
    turned = torch.zeros(len(layers), device=model.device)
    with torch.no_grad():
        for ids, _ in examples:
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


class Student(pl.LightningModule):
    """Next-token loss on a target's own answers (sequence-level distillation, arXiv 1606.07947)
    with AdamW.
    """

    def __init__(self, model: PreTrainedModel, steps: int, lr: float) -> None:
        super().__init__()
        self.model = model
        self.steps = steps
        self.lr = lr

    def training_step(self, batch: Batch, index: int) -> Tensor:
        """The loss of a batch."""
        logits_NV, tokens_N = predictions(self.model, batch)
        loss = cross_entropy(logits_NV.float(), tokens_N)
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> Any:
        """AdamW, with a rate that rises for a twentieth of the steps and falls to nothing."""
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(trained, betas=(0.9, 0.95), weight_decay=0.01)
        rate = torch.optim.lr_scheduler.OneCycleLR(
            optimizer,
            self.lr,
            max(2, self.steps),
            pct_start=0.05,
        )
        return [optimizer], [{"scheduler": rate, "interval": "step"}]


@torch.inference_mode()
def match_rate(model: PreTrainedModel, examples: Sequence[Example]) -> float:
    """In which share of places of these texts the model's first choice is the target's."""
    right = 0
    total = 0
    for example in examples:
        batch = [part.to(model.device) for part in collate([example])]
        logits_NV, tokens_N = predictions(model, batch)
        right += int((logits_NV.argmax(-1) == tokens_N).sum())
        total += len(tokens_N)
    return right / total


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
    training: list[Example] = []
    checked: list[Example] = []
    texts = zip(*map(read_json_lines, (prompts_of("train"), reference_of("train"))), strict=True)
    for place, (prompt, answer) in enumerate(texts):
        part = training if place % CHECKED else checked
        part.append(([*prompt["ids"], *answer["ids"]], len(prompt["ids"])))
    pl.seed_everything(0, verbose=False)
    model = load_model(replace(source.roles[of], quantise="none"))
    dtype = model.dtype
    places = cut(model, layers, training[:PROBED])
    steps = epochs * max(1, len(training) // batch_size)
    planned = plan([len(ids) for ids, _ in training], batch_size, steps, seed=0)
    before = match_rate(model, checked)
    trainer = lightning(
        10,
        max_epochs=1,
        devices=1,
        precision="bf16-mixed" if has_fast_bfloat16() else "32-true",
        enable_checkpointing=False,
        gradient_clip_val=1.0,
    )
    trainer.fit(Student(model, len(planned), lr), loader(training, planned))
    behind = match_rate(model, checked)

    def write(part: Path) -> None:
        model.to(dtype).save_pretrained(part)
        load_tokenizer(source).save_pretrained(part)

    write_atomic(folder, write)
    print(
        f"{folder} is written: layers {', '.join(map(str, places))}, trained on {len(training)}"
        f" answers. On {len(checked)} others its first choice is the target's token in"
        f" {behind:.1%} of the places, before the training in {before:.1%}."
    )


if __name__ == "__main__":
    run(main)
