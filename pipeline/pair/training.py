"""Teach the models of the embedded pair from scratch with PyTorch Lightning."""

import logging
import random
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from tempfile import TemporaryDirectory
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint, TQDMProgressBar
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.benchmark import Timer
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from pipeline.pair.world import CONTEXT, answer_of, padded_size, prompt_text
from pipeline.params import ModelTraining, PairTrainingParams

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


def labelled_states(model: PreTrainedModel, batch: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Last states [N, D] in front of the tokens with a label, and these tokens [N]. Padding stands
    behind all that counts.
    """
    ids_BT, labels_BT = batch
    hidden_BTD = model.base_model(input_ids=ids_BT, use_cache=False).last_hidden_state[:, :-1]
    next_BT = labels_BT[:, 1:]
    counts = next_BT != IGNORED
    return hidden_BTD[counts], next_BT[counts]


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


@cache
def has_fast_bfloat16() -> bool:
    """Whether products in bfloat16 are clearly faster than in float32 here. On processors it is
    measured, because instructions do not tell: a Xeon with AVX512-BF16 and without AMX takes
    longer in bfloat16.
    """
    if torch.cuda.is_available():
        return bool(torch.cuda.is_bf16_supported())
    seconds = {}
    for dtype in (torch.float32, torch.bfloat16):
        states = torch.ones(256, 1024, dtype=dtype)
        weights = torch.ones(1024, 1024, dtype=dtype)
        timer = Timer(
            "states @ weights",
            globals={"states": states, "weights": weights},
            num_threads=torch.get_num_threads(),
        )
        seconds[dtype] = timer.blocked_autorange(min_run_time=0.05).median
    return seconds[torch.bfloat16] < 0.8 * seconds[torch.float32]


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
            states_ND, tokens_N = labelled_states(self.model, batch)
            logits_NV = self.model.get_output_embeddings()(states_ND)
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
