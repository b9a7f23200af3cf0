"""Teach one model of the embedded pair with PyTorch Lightning."""

import logging
import random
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import TQDMProgressBar
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from pipeline.pair.world import CONTEXT, answer_of, padded_size, prompt_text
from pipeline.params import ModelTraining, PairTrainingParams

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # quintic iteration: singular values into about [0.7, 1.2] in five steps
IGNORED = -100  # label of positions without loss: the question and the padding


def lightning(refresh_rate: int, callbacks: Sequence[pl.Callback] = (), **options: Any) -> pl.Trainer:
    """A trainer that keeps no log and says nothing but its bar, which so many steps refresh; 0 and a log have none."""
    for noisy in ("lightning.pytorch", "pytorch_lightning", "pytorch_lightning.utilities.rank_zero"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="pytorch_lightning")  # advice on workers and loggers
    shown = TQDMProgressBar(refresh_rate=refresh_rate if sys.stdout.isatty() else 0)
    quiet: dict[str, Any] = {"logger": False, "enable_model_summary": False, "num_sanity_val_steps": 0}
    return pl.Trainer(callbacks=[*callbacks, shown], **quiet, **options)


def orthogonalise(g_BMN: Tensor, steps: int = 5) -> Tensor:
    """Replace the singular values of each matrix by about 1; needs M <= N. Shapes [B, M, N] -> [B, M, N]."""
    a, b, c = COEFFICIENTS
    x: Tensor = g_BMN / (g_BMN.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


class Muon(torch.optim.Optimizer):
    """Muon (Jordan et al., 2024). Twice as fast as torch.optim.Muon, which treats one matrix at a time and always in
    bfloat16: here matrices of equal shape share one batched product in a chosen precision."""

    def __init__(self, params: Iterable[Tensor], lr: float = 0.02, dtype: torch.dtype = torch.float32) -> None:
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
                    param.add_(update.to(param.dtype), alpha=-group["lr"] * max(1.0, rows / columns) ** 0.5)
        return loss


def encode(tokenizer: PreTrainedTokenizerBase, documents: Sequence[dict[str, str]]) -> list[tuple[list[int], int]]:
    """Ids of each document with the end token, and the length of its question in tokens."""
    prompts = tokenizer([prompt_text(doc["question"]) for doc in documents], add_special_tokens=False)["input_ids"]
    answers = tokenizer([f" {doc['answer']}" for doc in documents], add_special_tokens=False)["input_ids"]
    eos = tokenizer.eos_token_id
    return [([*prompt, *answer, eos], len(prompt)) for prompt, answer in zip(prompts, answers, strict=True)]


def plan(lengths: Sequence[int], batch_size: int, steps: int, seed: int) -> list[list[int]]:
    """Which documents form the batch of each step. A pass shuffles the documents, sorts neighbourhoods of 16 batches by
    length and shuffles the batches again, so a batch pads little and still is random."""
    rng, batches = random.Random(seed), list[list[int]]()
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


def make_model(size: ModelTraining, tokenizer: PreTrainedTokenizerBase, seed: int) -> LlamaForCausalLM:
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
        **{name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")},
    )
    model = LlamaForCausalLM(config)
    model.set_attn_implementation("eager")  # on a CPU twice as fast backwards as the fused kernel for texts this short
    return model


def has_fast_bfloat16() -> bool:
    """Whether bfloat16 products are faster than float32 here; AVX-512 alone takes twice as long for them."""
    if torch.cuda.is_available():
        return bool(torch.cuda.is_bf16_supported())
    capabilities: dict[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capabilities.get("amx_bf16", False) or capabilities.get("avx512_bf16", False))


class LanguageModule(pl.LightningModule):
    """Next-token loss on solutions; Muon for the matrices, Adam for embeddings and norms."""

    def __init__(self, model: LlamaForCausalLM, size: ModelTraining, warmup: float) -> None:
        super().__init__()
        self.model, self.size, self.warmup = model, size, warmup
        self.fast_bfloat16 = has_fast_bfloat16()
        self.automatic_optimization = False  # two optimisers, one backward pass
        self.losses: list[float] = []

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        """One step of both optimisers; logits are made for the positions with a label alone."""
        ids_BT, labels_BT = batch
        step, steps = len(self.losses), self.size.steps
        rise = max(1, round(self.warmup * steps))  # learning rates rise linearly, then go linearly down to 0
        factor = min((step + 1) / rise, (steps - step) / max(1, steps - rise), 1.0)
        with torch.autocast(ids_BT.device.type, torch.bfloat16, enabled=self.fast_bfloat16):
            hidden_BTD = self.model.model(input_ids=ids_BT).last_hidden_state
            has_loss = labels_BT[:, 1:] != IGNORED
            logits_NV = self.model.lm_head(hidden_BTD[:, :-1][has_loss])
        loss = torch.nn.functional.cross_entropy(logits_NV.float(), labels_BT[:, 1:][has_loss])
        self.manual_backward(loss)
        for optimizer, peak in zip(self.optimizers(), (self.size.matrix_lr, self.size.lr), strict=True):
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
        return [Muon(matrices, dtype=dtype), torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=0.0)]


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
    trainer = lightning(shown, max_epochs=1, accelerator="auto", devices=1, enable_checkpointing=False)
    trainer.fit(module, DataLoader(batches, None, collate_fn=partial(collate, pad=model.config.pad_token_id)))
    return model.eval().cpu(), module.losses


def accuracy(tokenizer: PreTrainedTokenizerBase, solutions: Sequence[list[int]], answers: Sequence[str]) -> float:
    """Share of the solutions whose `#### answer` is the one of `answers`."""
    texts = tokenizer.batch_decode(list(solutions), skip_special_tokens=True)
    right = [answer_of(text) == answer_of(answer) for text, answer in zip(texts, answers, strict=True)]
    return sum(right) / len(right)
