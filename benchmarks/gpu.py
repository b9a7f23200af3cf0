"""What the parts of a round take on a GPU: models of real shapes with random weights, and scripted
acceptance.

python -m benchmarks.gpu [--pairs qwen2.5-7b:qwen2.5-0.5b,...] [--cells 1x512,8x512,...]
"""

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from datetime import date
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel, Qwen2Config

from gistgate import __version__
from gistgate.compiled.program import num_bytes
from gistgate.compiled.session import CompiledSession
from gistgate.core.block import Block
from gistgate.core.decoder import Decoder
from gistgate.core.features import LOOK_AHEAD, SCALARS
from gistgate.core.files import write_json
from gistgate.core.identity import TokenizerIdentity, identify_model
from gistgate.core.rule import Exact, Rule
from gistgate.core.utils import Registry, UserError, replaced
from gistgate.drafters.model import ModelDrafter
from gistgate.gate import Gate, GateConfig
from gistgate.measure.speed import clocked, machine
from gistgate.rules.learned import AutoJudge
from pipeline.run import run

WIDTHS = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
)
LLAMA = {"max_position_embeddings": 131072, "rope_theta": 5e5}
QWEN = {"max_position_embeddings": 32768, "rope_theta": 1e6}
TIED = {"tie_word_embeddings": True}
SHAPES: Registry[tuple[type[Any], tuple[int, ...], dict[str, Any]]] = Registry(
    "shape",
    {
        "llama-3.1-8b": (LlamaConfig, (4096, 14336, 32, 32, 8, 128256), LLAMA),
        "llama-3.2-1b": (LlamaConfig, (2048, 8192, 16, 32, 8, 128256), LLAMA | TIED),
        "qwen2.5-7b": (Qwen2Config, (3584, 18944, 28, 28, 4, 152064), QWEN),
        "qwen2.5-1.5b": (Qwen2Config, (1536, 8960, 28, 12, 2, 151936), QWEN | TIED),
        "qwen2.5-0.5b": (Qwen2Config, (896, 4864, 24, 14, 2, 151936), QWEN | TIED),
        "tiny": (LlamaConfig, (64, 128, 3, 4, 2, 512), {}),
    },
)
"""Published shapes, by name: kind, widths, and further entries of the configuration."""
PAIRS = "qwen2.5-7b:qwen2.5-0.5b,llama-3.1-8b:llama-3.2-1b,qwen2.5-1.5b:qwen2.5-0.5b"
CELLS = "1x512"
"""Batch x slots, which are tokens of context that the memory has room for."""
SHORT = 32
LONG = 160
"""Tokens of two answers, whose difference holds no reading of the prompt."""
ROOM = 256
"""Slots that are kept for the answer."""
LENGTHS = (2, 4, 6, 8)
"""Mean accepted lengths that are decoded."""
REPEATS = 30


@dataclass(frozen=True)
class Scripted(Rule, id="scripted"):
    """Computes what another rule computes, and then accepts as many tokens as a script says."""

    inner: Rule
    length: Tensor = field(repr=False, compare=False)  # draft tokens that stay in every round []
    superset = False

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        return self.inner.needs

    def accept(self, block: Block) -> Tensor:
        scripted_K = torch.arange(block.draft_ids.shape[1], device=self.length.device) < self.length
        return (self.inner.accept(block) | scripted_K) & scripted_K


def model_of(shape: str, device: str) -> PreTrainedModel:
    """Random weights in bfloat16."""
    kind, widths, entries = SHAPES[shape]
    sizes = dict(zip(WIDTHS, widths, strict=True))
    config = kind(**sizes, pad_token_id=0, eos_token_id=None, **entries)
    with torch.device(device):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    return model.eval().requires_grad_(False)


def gate_of(target: PreTrainedModel) -> Gate:
    """An untrained gate of the pipeline's default features."""
    width = target.config.hidden_size
    features = {
        "h_tok:post": width,
        "h_pred:post": width,
        "scalars": len(SCALARS),
        "lookahead": 3 * LOOK_AHEAD,
    }
    tokenizer = TokenizerIdentity("none", "", target.config.vocab_size)
    config = GateConfig({"type": "linear"}, features, identify_model(target), None, tokenizer)
    return Gate(config).to(target.device)


def milliseconds(call: Callable[[], object], repeats: int = REPEATS) -> float:
    """Median time of one call, behind three that warm up."""
    return 1000 * median([clocked(call)[0] for _ in range(3 + repeats)][3:])


def seconds_per_token(answer: Callable[[int], object]) -> float:
    """Seconds per token behind the first ones, reading the prompt aside; `answer` takes a number of
    tokens.
    """
    long_ms = milliseconds(lambda: answer(LONG), 3)
    short_ms = milliseconds(lambda: answer(SHORT), 3)
    return (long_ms - short_ms) / (LONG - SHORT) / 1000


def copy_bandwidth(device: str) -> float:
    """Bytes per second, read and written, of copying a large tensor."""
    source = torch.empty(2**31 if device == "cuda" else 2**24, dtype=torch.uint8, device=device)
    copy = torch.empty_like(source)
    seconds = milliseconds(lambda: copy.copy_(source), 10) / 1000
    return 2 * source.nbytes / seconds


class Recorder:
    """A program that remembers its last inputs, so that it can be timed on them."""

    def __init__(self, program: Callable[..., Any]) -> None:
        self.program = program
        self.inputs: Sequence[Tensor] = ()

    def __call__(self, *inputs: Tensor) -> Any:
        self.inputs = inputs
        return self.program(*inputs)

    def milliseconds(self) -> float:
        """Time of one call, in a round of the last answer."""
        return milliseconds(lambda: self.program(*self.inputs))

    def limit_ms(self, model: PreTrainedModel, bandwidth: float) -> float:
        """Time of reading what a step reads: keys, values and every weight but the rows of an
        embedding that no output layer shares.
        """
        read = num_bytes([*model.parameters(), *self.inputs])
        embedding = model.get_input_embeddings().weight
        if embedding is not model.get_output_embeddings().weight:
            read -= embedding.nbytes
        return 1000 * read / bandwidth


class Bench:
    """One pair at one batch and one number of slots."""

    def __init__(self, pair: str, cell: str, device: str) -> None:
        self.target, self.draft = (model_of(shape, device) for shape in pair.split(":"))
        self.prompts = prompts_of(self.target, cell)
        self.length = torch.zeros((), dtype=torch.long, device=device)

    def decoder(self, block: int, rule: Rule) -> Decoder:
        """A decoder with a rule under the script, or plain at `block` 0."""
        return Decoder(
            self.target,
            ModelDrafter(self.draft) if block else None,
            Scripted(rule, self.length) if block else rule,
            block,
            gate=gate_of(self.target) if isinstance(rule, AutoJudge) else None,
            engine="compiled",
            vocabulary=min(model.config.vocab_size for model in (self.target, self.draft)),
        )

    def tokens_per_second(self, decoder: Decoder, length: int) -> float:
        """Tokens per second of all rows at a mean accepted length."""
        self.length.fill_(length - 1)
        each = seconds_per_token(
            lambda tokens: decoder.generate(self.prompts, max_new_tokens=tokens)
        )
        assert not decoder.engine.fell_back, decoder.engine.fell_back
        return len(self.prompts) / each

    def programs(self, decoder: Decoder) -> tuple[Recorder, Recorder]:
        """The programs of a round, after an answer: verification with its rule, and K draft
        steps.
        """
        sessions = []
        run = CompiledSession.run

        def recorded(session: Any) -> Any:
            session._round_program = Recorder(session._round_program)
            if session._steps is not None:
                session._steps = Recorder(session._steps)
            sessions.append(session)
            return run(session)

        with replaced(CompiledSession, "run", recorded):
            decoder.generate(self.prompts, max_new_tokens=LONG)
        return sessions[0]._round_program, sessions[0]._steps


def prompts_of(target: PreTrainedModel, cell: str) -> list[list[int]]:
    """Equal random prompts for the rows of a cell, which leave `ROOM` of its slots."""
    batch, slots = map(int, cell.split("x"))
    chance = torch.Generator().manual_seed(0)
    ids = torch.randint(2, target.config.vocab_size, (slots - ROOM,), generator=chance)
    return [ids.tolist()] * batch


def measure_pair(pair: str, cell: str, block: int, device: str) -> dict[str, Any]:
    """All parts of one cell, and tokens per second of all rows by mean accepted length. The share
    of the limit is the time of reading what a step reads, as fast as a large tensor is copied, over
    that of the step.
    """
    bandwidth = copy_bandwidth(device)
    bench = Bench(pair, cell, device)
    plain = bench.decoder(0, Exact())
    strict = bench.decoder(block, Exact())
    gated = bench.decoder(block, AutoJudge(risk=0.5))
    step, _ = bench.programs(plain)
    plain_ms = step.milliseconds()
    verify, draft = bench.programs(strict)
    verify_ms = verify.milliseconds()
    draft_ms = draft.milliseconds()
    judge, _ = bench.programs(gated)
    gate_ms = judge.milliseconds() - verify_ms
    lengths = [length for length in LENGTHS if length <= block + 1]
    return {
        "pair": pair,
        "cell": cell,
        "block": block,
        "plain_ms": plain_ms,
        "share_of_limit": step.limit_ms(bench.target, bandwidth) / plain_ms,
        "draft_step_ms": draft_ms / block,
        "c": draft_ms / block / plain_ms,
        "v": verify_ms / plain_ms,
        "gate_percent": 100 * gate_ms / (draft_ms + verify_ms),
        "plain": bench.tokens_per_second(plain, 1),
        "strict": {length: bench.tokens_per_second(strict, length) for length in lengths},
        "gate": {length: bench.tokens_per_second(gated, length) for length in lengths},
    }


def main(
    pairs: str = PAIRS,
    cells: str = CELLS,
    block: int = 8,
    results: Path = Path("benchmarks/results"),
) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and pairs == PAIRS:
        raise UserError(
            "PyTorch finds no GPU here. Take a machine with one, or try it with --pairs tiny:tiny."
        )
    about = {"machine": machine(), "date": date.today().isoformat(), "version": __version__}
    measured = []
    # Each in a process of its own, with graph memory of its own.
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
        for cell, pair in product(cells.split(","), pairs.split(",")):
            figures = pool.submit(measure_pair, pair, cell, block, device).result()
            print(json.dumps(figures), flush=True)
            measured.append(figures)
            write_json(results / "gpu.json", {**about, "measured": measured})


if __name__ == "__main__":
    run(main)
