"""Teach one model of the embedded pair with PyTorch Lightning; an interrupted training resumes where it was."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from pipeline.common.checkpoints import WholeCheckpoints
from pipeline.common.progress import lightning_bar
from pipeline.pairs.muon import Muon
from pipeline.pairs.world.batches import IGNORED, collate, encode, plan
from pipeline.pairs.world.params import ModelTraining, PairTrainingParams
from pipeline.pairs.world.tokenizer import CONTEXT, padded_size


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
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = LlamaForCausalLM(config)
    model.set_attn_implementation("eager")  # on a CPU twice as fast backwards as the fused kernel for texts this short
    return model


def has_fast_bfloat16() -> bool:
    """Whether bfloat16 products are faster than float32 here: a CUDA device, or a processor that multiplies bfloat16.

    Matrix tiles (AMX) and AVX512_BF16 do; AVX-512 alone computes bfloat16 at about half the speed of float32.
    """
    if torch.cuda.is_available():
        return bool(torch.cuda.is_bf16_supported())
    capabilities: dict[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capabilities.get("amx_bf16", False) or capabilities.get("avx512_bf16", False))


def learning_rate(step: int, steps: int, warmup: float) -> float:
    """Factor of the learning rates: a linear rise over `warmup * steps`, then linearly down to 0."""
    rise = max(1, round(warmup * steps))
    return min((step + 1) / rise, (steps - step) / max(1, steps - rise), 1.0)


class LanguageModule(pl.LightningModule):
    """Next-token loss on solutions; Muon for the matrices, Adam for embeddings and norms."""

    def __init__(self, model: LlamaForCausalLM, size: ModelTraining, warmup: float) -> None:
        super().__init__()
        self.model, self.size, self.warmup = model, size, warmup
        self.fast_bfloat16 = has_fast_bfloat16()
        self.automatic_optimization = False  # two optimisers, one backward pass
        self.register_buffer("steps_done", torch.zeros((), dtype=torch.long))
        self.losses: list[float] = []

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["losses"] = self.losses

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.losses = checkpoint["losses"]

    def loss(self, ids_BT: Tensor, labels_BT: Tensor) -> Tensor:
        """Mean cross entropy of the positions with a label; logits are made for these alone."""
        with torch.autocast(ids_BT.device.type, torch.bfloat16, enabled=self.fast_bfloat16):
            hidden_BTD = self.model.model(input_ids=ids_BT).last_hidden_state
            has_loss = labels_BT[:, 1:] != IGNORED
            logits_NV = self.model.lm_head(hidden_BTD[:, :-1][has_loss])
        return torch.nn.functional.cross_entropy(logits_NV.float(), labels_BT[:, 1:][has_loss])

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        """One step of both optimisers."""
        factor = learning_rate(int(self.steps_done), self.size.steps, self.warmup)
        loss = self.loss(*batch)
        self.manual_backward(loss)
        for optimizer, peak in zip(self.optimizers(), (self.size.matrix_lr, self.size.lr), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = peak * factor
            optimizer.step()
            optimizer.zero_grad()
        self.steps_done += 1
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


class Batches(pl.LightningDataModule):
    """Deals the planned batches, `save_every` steps to an epoch, so that a resumed training sees the same ones."""

    def __init__(self, rows: list[tuple[list[int], int]], batches: list[list[int]], pad: int, save_every: int) -> None:
        super().__init__()
        self.rows, self.batches, self.pad, self.save_every = rows, batches, pad, save_every

    def train_dataloader(self) -> DataLoader:
        """The batches of the current epoch."""
        begin = self.trainer.current_epoch * self.save_every
        indices = self.batches[begin : begin + self.save_every]
        return DataLoader(indices, batch_size=None, collate_fn=self._collate)  # type: ignore[arg-type]

    def _collate(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        return collate([self.rows[i] for i in indices], self.pad)


def train_model(
    name: str,
    size: ModelTraining,
    params: PairTrainingParams,
    tokenizer: PreTrainedTokenizerBase,
    documents: Sequence[dict[str, str]],
    seed: int,
    scratch: Path,
) -> tuple[LlamaForCausalLM, list[float]]:
    """Train a model on `documents`; returns the loss of every step as well.

    Args:
        scratch: folder of the checkpoint `<name>.ckpt`; a training that finds one there continues from it.
    """
    model = make_model(size, tokenizer, seed)
    module = LanguageModule(model, size, params.warmup)
    rows = encode(tokenizer, documents)
    batches = plan([len(ids) for ids, _ in rows], size.batch_size, size.steps, seed)
    checkpoint = scratch / f"{name}.ckpt"
    model.train()
    trainer = pl.Trainer(
        max_epochs=math.ceil(size.steps / params.save_every),
        reload_dataloaders_every_n_epochs=1,
        accelerator="auto",
        devices=1,
        logger=False,
        enable_model_summary=False,
        plugins=[WholeCheckpoints()],
        callbacks=[
            # Both train at once, and the target takes longer.
            *lightning_bar(10 if name == "target" else 0, f"pair, {name}", size.steps),
            ModelCheckpoint(scratch, filename=name, save_on_train_epoch_end=True, enable_version_counter=False),
        ],
    )
    data = Batches(rows, batches, tokenizer.pad_token_id, params.save_every)
    trainer.fit(module, data, ckpt_path=str(checkpoint) if checkpoint.is_file() else None)
    return model.eval().cpu(), module.losses
