"""A tiny Qwen2 model in one GGUF file, with its tokenizer, as quantised models lie on disk."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tiny import byte_tokenizer

gguf = pytest.importorskip("gguf")

WIDTH = 32
LAYERS = 1
INNER = 64


def write_gguf(
    path: Path,
    tokens: list[str] | None = None,
    seed: int = 0,
    kind: str = "Q8_0",
    architecture: str = "qwen2",
    leave_out: str | None = None,
) -> Path:
    """Random weights, matrices packed as `kind`; `tokens` replaces the vocabulary of
    `byte_tokenizer`, and a matrix may be left out.
    """
    ids = byte_tokenizer().get_vocab()
    tokens = [*(sorted(ids, key=lambda token: ids[token]) if tokens is None else tokens), "ab"]
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_context_length(512)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(tokens))
    add_tokenizer(writer, tokens)
    matrices = matrices_of(len(tokens))
    matrices.pop(leave_out, None)
    add_weights(writer, matrices, kind, np.random.default_rng(seed))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_tokenizer(writer: Any, tokens: list[str]) -> None:
    """The vocabulary without merges: one token per byte."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(
        [gguf.TokenType.CONTROL if token[0] == "<" and len(token) > 1 else 1 for token in tokens]
    )
    writer.add_token_merges(["a b"])  # an empty list cannot be written
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)


def matrices_of(vocabulary: int) -> dict[str, tuple[int, int]]:
    """The shapes of the model's matrices, by their names."""
    matrices = {"token_embd": (vocabulary, WIDTH), "output": (vocabulary, WIDTH)}
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        matrices |= {f"{block}.attn_{part}": (WIDTH, WIDTH) for part in ("q", "k", "v", "output")}
        matrices |= {f"{block}.ffn_{part}": (INNER, WIDTH) for part in ("gate", "up")}
        matrices[f"{block}.ffn_down"] = (WIDTH, INNER)
    return matrices


def add_weights(
    writer: Any, matrices: dict[str, tuple[int, int]], kind: str, random: np.random.Generator
) -> None:
    """All tensors of the model."""
    packing = gguf.GGMLQuantizationType[kind]
    for name, shape in matrices.items():
        values = random.standard_normal(shape).astype(np.float32) / 8
        packed = gguf.quants.quantize(values, packing)
        writer.add_tensor(f"{name}.weight", packed, raw_dtype=packing)
    vectors = {"output_norm.weight": WIDTH}
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        vectors |= {f"{block}.attn_{part}.bias": WIDTH for part in ("q", "k", "v")}
        vectors |= {f"{block}.{part}_norm.weight": WIDTH for part in ("attn", "ffn")}
    for name, size in vectors.items():
        writer.add_tensor(name, np.ones(size, dtype=np.float32))
