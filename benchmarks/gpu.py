"""What the parts of a round take on a GPU: models of real shapes with random weights, and scripted
acceptance.

python -m benchmarks.gpu [--pairs qwen2.5-7b:qwen2.5-0.5b,...] [--cells 1x512,...] [--seconds 450]
"""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date
from itertools import chain, product
from pathlib import Path
from statistics import median
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel, Qwen2Config

from gistgate import __version__
from gistgate.compiled.memory import forward, program_of
from gistgate.compiled.program import num_bytes
from gistgate.compiled.rounds import AT, LAST
from gistgate.compiled.session import CompiledSession
from gistgate.core.block import Block, Sampling
from gistgate.core.decoder import Decoder
from gistgate.core.features import LOOK_AHEAD, SCALARS
from gistgate.core.files import read_json, write_json
from gistgate.core.identity import ModelIdentity, TokenizerIdentity
from gistgate.core.request import Row, Slots
from gistgate.core.rule import Exact, Rule, State
from gistgate.core.utils import UserError
from gistgate.drafters.model import ModelDrafter
from gistgate.gate import Gate, GateConfig
from gistgate.measure.baselines import static, theirs
from gistgate.measure.speed import machine, synchronise
from gistgate.rules.learned import AutoJudge
from pipeline.run import run

QWEN: dict[str, Any] = {"max_position_embeddings": 32768, "rope_theta": 1e6}
LLAMA: dict[str, Any] = {"max_position_embeddings": 131072, "rope_theta": 5e5, "vocab_size": 128256}
WIDTHS = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
)
SHAPES: dict[str, tuple[type[Any], tuple[int, ...], dict[str, Any]]] = {
    "llama-3.1-8b": (LlamaConfig, (4096, 14336, 32, 32, 8), LLAMA),
    "llama-8b-4-layers": (LlamaConfig, (4096, 14336, 4, 32, 8), LLAMA),
    "llama-3.2-1b": (LlamaConfig, (2048, 8192, 16, 32, 8), LLAMA | {"tie_word_embeddings": True}),
    "qwen2.5-7b": (Qwen2Config, (3584, 18944, 28, 28, 4), QWEN | {"vocab_size": 152064}),
    "qwen2.5-1.5b": (
        Qwen2Config,
        (1536, 8960, 28, 12, 2),
        QWEN | {"vocab_size": 151936, "tie_word_embeddings": True},
    ),
    "qwen2.5-0.5b": (
        Qwen2Config,
        (896, 4864, 24, 14, 2),
        QWEN | {"vocab_size": 151936, "tie_word_embeddings": True},
    ),
    "tiny": (LlamaConfig, (64, 128, 3, 4, 2), {"vocab_size": 512}),
}
"""Published shapes, by name: kind, widths, the rest."""
PAIRS = "qwen2.5-7b:qwen2.5-0.5b,llama-3.1-8b:llama-3.2-1b,qwen2.5-1.5b:qwen2.5-0.5b,llama-3.1-8b:llama-8b-4-layers"
# batch x slots, which are tokens of context that the memory has room for
CELLS = "1x512,8x512,1x4096,32x512,8x4096"
SHORT = 32  # tokens of two answers, whose difference holds no reading of the prompt
LONG = 160
ROOM = 256  # slots that are kept for the answer
LENGTHS = (2, 4, 6, 8)  # mean accepted lengths that are decoded
REPEATS = 30
GATED = "gate"


@dataclass(frozen=True)
class Scripted(Rule, id="scripted"):
    """Computes what another rule computes, and then accepts as many tokens as a script says."""

    inner: Rule
    most: Tensor = field(repr=False, compare=False)  # draft tokens that stay in every round []
    superset = False

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        return self.inner.needs

    def accept(self, block: Block, state: State) -> Tensor:
        places_K = torch.arange(block.draft_ids.shape[1], device=block.draft_ids.device)
        return (self.inner.accept(block, state) | (places_K < self.most)) & (places_K < self.most)


def model_of(shape: str, device: str) -> PreTrainedModel:
    """Random weights in bfloat16."""
    if shape not in SHAPES:
        raise UserError(f"There is no shape '{shape}'. Known: {', '.join(SHAPES)}.")
    kind, widths, more = SHAPES[shape]
    config = kind(
        **dict(zip(WIDTHS, widths, strict=True)), pad_token_id=0, eos_token_id=None, **more
    )
    with torch.device(device):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    return model.eval().requires_grad_(False)


def gate_of(target: PreTrainedModel) -> Gate:
    """An untrained gate of the pipeline's default features."""
    config = target.config
    width = config.hidden_size
    features = {
        "h_tok:post": width,
        "h_pred:post": width,
        "scalars": len(SCALARS),
        "lookahead": 3 * LOOK_AHEAD,
    }
    identity = ModelIdentity(
        "random",
        None,
        config.model_type,
        width,
        config.num_hidden_layers,
        config.vocab_size,
        str(target.dtype),
        "",
    )
    known = TokenizerIdentity("none", "", config.vocab_size)
    return Gate(GateConfig({"type": "linear"}, features, identity, None, known)).to(target.device)


def milliseconds(call: Callable[[], object], repeats: int = REPEATS) -> float:
    """Median time of one call, on the device where there is one."""
    for _ in range(3):
        call()
    synchronise()
    times = []
    for _ in range(repeats):
        if torch.cuda.is_available():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            call()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
        else:
            started = perf_counter()
            call()
            times.append(1000 * (perf_counter() - started))
    middle: float = median(times)
    return middle


def seconds_of(answer: Callable[[int], object]) -> tuple[float, float]:
    """Seconds of the first answer, which builds what it needs, and per token from then on, reading
    the prompt aside.
    """

    def timed(tokens: int) -> float:
        synchronise()
        started = perf_counter()
        answer(tokens)
        synchronise()
        return perf_counter() - started

    ready = timed(SHORT)
    timed(SHORT)
    long, short = (median(timed(tokens) for _ in range(3)) for tokens in (LONG, SHORT))
    return ready, (long - short) / (LONG - SHORT)


def copy_bandwidth(device: str) -> float:
    """Bytes per second, read and written, of copying a large tensor."""
    source = torch.empty(2**31 if device == "cuda" else 2**24, dtype=torch.uint8, device=device)
    copy = torch.empty_like(source)
    seconds = milliseconds(lambda: copy.copy_(source), 10) / 1000
    return 2 * source.nbytes / seconds


def bytes_read(model: PreTrainedModel, memory: Sequence[Tensor]) -> int:
    """What a step has to read: every weight but the rows of an embedding that no output layer
    shares, keys, values.
    """
    inputs = model.get_input_embeddings()
    outputs = model.get_output_embeddings()
    spared = inputs.weight.nbytes if inputs.weight is not outputs.weight else 0
    read: int = num_bytes([*model.parameters(), *memory]) - spared
    return read


@dataclass
class Bench:
    """One pair at one batch and one number of slots."""

    target: PreTrainedModel
    draft: PreTrainedModel
    batch: int
    slots: int
    block: int

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(
            2, self.target.config.vocab_size, (self.slots - ROOM,), generator=generator
        )
        self.prompts = [ids.tolist()] * self.batch
        self.most = torch.zeros((), dtype=torch.long, device=self.target.device)
        self.gate = gate_of(self.target)
        self.vocabulary = min(model.config.vocab_size for model in (self.target, self.draft))

    def decoder(self, name: str, block: int) -> Decoder:
        """Ours with the strict rule or the gate under a script; plain at `block` 0."""
        if not block:
            return Decoder(
                self.target, None, Exact(), 0, engine="compiled", vocabulary=self.vocabulary
            )
        rule = Scripted(AutoJudge(risk=0.5) if name == GATED else Exact(), self.most)
        gate = self.gate if name == GATED else None
        drafter = ModelDrafter(self.draft)
        size = self.vocabulary
        return Decoder(
            self.target, drafter, rule, block, gate=gate, engine="compiled", vocabulary=size
        )

    def session(self, decoder: Decoder) -> CompiledSession:
        rows = [Row(index, list(prompt), len(prompt)) for index, prompt in enumerate(self.prompts)]
        stop = decoder._stop(LONG, (), ())
        return CompiledSession(decoder.parts, rows, stop, Sampling(), Slots())

    def round_ms(self, session: CompiledSession) -> float:
        """The verification of one round with its rule, and the messages to the device."""
        feed = session._feed(session.rows)
        uniforms = session._uniforms(0)
        ids = session._ints(session.num)
        valid = torch.ones(session.batch, session.num, dtype=torch.bool)
        q = torch.ones(session.batch, session.num, 0, device=session.device)
        inputs = [feed, ids, valid.to(session.device), q, uniforms]
        return milliseconds(lambda: session._round_program(*session._memory, *inputs))

    def draft_ms(self, session: CompiledSession) -> float:
        """K draft steps, of which the first reads two tokens."""
        feed = session._feed(session.rows)
        uniforms = session._uniforms(0)
        assert session._steps is not None
        steps = session._steps
        return milliseconds(lambda: steps(*session._draft_memory, feed, uniforms))

    def forward_ms(self, session: CompiledSession) -> float:
        """The target's forward of K + 1 tokens alone, down to the most probable tokens."""

        def bare(*tensors: Tensor) -> tuple[Tensor, ...]:
            *memory, feed, x_BK = tensors
            ids = torch.cat([feed[:, LAST : LAST + 1], x_BK], dim=1)
            steps = torch.arange(ids.shape[1], device=ids.device)
            return (
                forward(
                    self.target, memory, ids, feed[:, AT : AT + 1] + steps, ids.shape[1]
                ).argmax(-1),
            )

        inputs = [session._feed(session.rows), session._ints(session.num)]
        program = program_of(self.target, ("bare", session.num), bare, session._memory, inputs)
        return milliseconds(lambda: program(*session._memory, *inputs))

    def seconds(self, decoder: Decoder, kept: int = 0) -> float:
        """Seconds per token of each row, while `kept` draft tokens stay in every round."""
        self.most.fill_(kept)
        _, each = seconds_of(lambda tokens: decoder.generate(self.prompts, max_new_tokens=tokens))
        assert not decoder.engine.fell_back, decoder.engine.fell_back
        return each


def measured(bench: Bench, bandwidth: float, save: Callable[[dict[str, Any]], None]) -> None:
    """All parts of one cell; `save` is called whenever something is known."""
    found: dict[str, Any] = {"batch": bench.batch, "slots": bench.slots, "block": bench.block}
    started = perf_counter()
    plain = bench.decoder("plain", 0)
    found["plain_seconds_per_token"] = bench.seconds(plain)
    found["plain_ready_seconds"] = perf_counter() - started
    session = bench.session(plain)
    found["plain_ms"] = bench.round_ms(session)
    found["limit_ms"] = 1000 * bytes_read(bench.target, session._memory) / bandwidth
    save(found)
    started = perf_counter()
    strict = bench.decoder("strict", bench.block)
    strict.generate(bench.prompts, max_new_tokens=SHORT)
    found["strict_ready_seconds"] = perf_counter() - started
    session = bench.session(strict)
    found |= {"strict_ms": bench.round_ms(session), "draft_ms": bench.draft_ms(session)}
    found["draft_limit_ms"] = 1000 * bytes_read(bench.draft, session._draft_memory) / bandwidth
    found["verify_ms"] = bench.forward_ms(session)
    save(found)
    for name in ("strict", GATED):
        decoder = bench.decoder(name, bench.block)
        if name == GATED:
            found["gate_ms"] = bench.round_ms(bench.session(decoder))
        lengths = [length for length in LENGTHS if length <= bench.block + 1]
        found[f"{name}_seconds_per_token"] = {
            str(one): bench.seconds(decoder, one - 1) for one in lengths
        }
        save(found)


def of_pair(pair: str, cells: str, block: int, device: str, path: Path) -> None:
    """Measure a pair in this process."""
    target, draft = (model_of(shape, device) for shape in pair.split(":"))
    payload: dict[str, Any] = {"pair": pair, "bandwidth": copy_bandwidth(device), "cells": {}}
    for cell in cells.split(","):
        batch, slots = map(int, cell.split("x"))

        def save(found: dict[str, Any], cell: str = cell) -> None:
            payload["cells"][cell] = found
            write_json(path, payload)
            print(pair, cell, json.dumps(found), flush=True)

        measured(Bench(target, draft, batch, slots, block), payload["bandwidth"], save)


def of_library(shape: str, cells: str, block: int, device: str, path: Path) -> None:
    """The same weights without programs of ours: our eager engine, transformers' `generate`, its
    static cache.
    """
    target = model_of(shape, device)
    found = dict[str, Any]()
    pair = SimpleNamespace(target=target, draft=None, tokenizer=None)
    request = {"max_new_tokens": SHORT}
    eager = Decoder(target, None, Exact(), 0)
    for cell in cells.split(","):
        batch, slots = map(int, cell.split("x"))
        prompts = Bench(target, target, batch, slots, 0).prompts
        for name, decode in {
            "eager": lambda prompts: eager.generate(prompts, **request),
            "generate": theirs(pair, request),
            "generate_static": static(pair, request, slots).decode,
        }.items():

            def answer(tokens: int, decode: Any = decode, prompts: Any = prompts) -> None:
                request["max_new_tokens"] = tokens
                decode(prompts)

            ready, each = seconds_of(answer)
            told = {"seconds_per_token": each, "ready_seconds": ready}
            found.setdefault(cell, {})[name] = told
            write_json(path, {"target": shape, "cells": found})
            print(shape, cell, name, json.dumps(told), flush=True)


def parts(one: dict[str, Any]) -> dict[str, float]:
    """What follows from the times of a cell. `limit` is the time of copying what a plain step
    reads, as fast as a large tensor is copied, over that of the step; `rest` is what the host adds
    to a round, commit included, at tau 4."""
    round_ms = one["draft_ms"] + one["strict_ms"]
    plain = one["plain_ms"]
    found = {"limit": one["limit_ms"] / plain, "c": one["draft_ms"] / one["block"] / plain}
    found |= {"v": one["verify_ms"] / plain, "ready": one["plain_ready_seconds"]}
    found |= {
        name: 100 * max(one[name] - one["verify_ms"], 0) / round_ms for name in RULES if name in one
    }
    strict, gated = (one.get(f"{name}_seconds_per_token", {}) for name in ("strict", GATED))
    if "4" in strict:
        found |= {
            "rest": 4000 * strict["4"] - round_ms,
            "strict": one["plain_seconds_per_token"] / strict["4"],
        }
        found |= {"gated": strict["4"] / gated["6"]} if "6" in gated else {}
    return found


def lines(payload: dict[str, Any], library: dict[str, Any]) -> list[str]:
    """The table of one pair: a line for each cell whose verification was timed."""
    table = []
    for cell, one in payload["cells"].items():
        if "verify_ms" not in one:
            continue
        batch = one["batch"]
        found = parts(one)
        ours = [one.get(f"{name}_seconds_per_token", {}) for name in ("strict", GATED)]
        speeds = [
            " ".join(f"{batch / seconds:.0f}" for seconds in each.values()) or "-" for each in ours
        ]
        theirs = [library.get(cell, {}).get(name) for name in LIBRARY]
        numbers = [
            *(batch, one["slots"], f"{one['plain_ms']:.2f}", f"{found['limit']:.2f}"),
            *(f"{one['draft_ms'] / one['block']:.2f}", f"{found['c']:.2f}", f"{found['v']:.2f}"),
            *(f"{found[name]:.1f}" if name in found else "-" for name in RULES),
            f"{found['rest']:.2f}" if "rest" in found else "-",
            *(
                "-" if each is None else f"{batch / each['seconds_per_token']:.0f}"
                for each in theirs
            ),
            *(f"{batch / one['plain_seconds_per_token']:.0f}", *speeds),
        ]
        table.append(f"| {payload['pair']} | {' | '.join(map(str, numbers))} |")
    return table


def verdicts(payload: dict[str, Any]) -> list[str]:
    """A sentence for each goal that the pair's first cell can tell of."""
    one = next(iter(payload["cells"].values()), {})
    found = parts(one) if "verify_ms" in one else {}
    return [
        f"{payload['pair']}, {one['batch']} x {one['slots']}: {what} {found[name]:.3g}; the goal is"
        f" at {side} {goal:g}."
        for name, (what, side, goal) in GOALS.items()
        if name in found
    ]


RULES = ("strict_ms", "gate_ms")
LIBRARY = ("eager", "generate", "generate_static")
HEADER = (
    "| pair | batch | slots | plain step, ms | share of limit | draft step, ms | c | v | strict"
    " rule, % of a round | gate and rule, % | rest of a round, ms | eager, tokens/s | generate |"
    " static compiled | plain | strict at 2 4 6 8 | gate at 2 4 6 8 |"
)
GOALS = {
    "ready": ("seconds to the first answer are", "most", 60),
    "limit": ("a plain step's share of the bandwidth limit is", "least", 0.8),
    "c": ("a draft step over a plain step is", "most", 0.35),
    "gate_ms": ("gate and rule in percent of a round are", "most", 1),
    "strict": ("strict speed at tau 4 over plain speed is", "least", 2),
    "gated": ("gate speed at tau 6 over strict speed at tau 4 is", "least", 1.35),
}


def main(
    pairs: str = PAIRS,
    cells: str = CELLS,
    block: int = 8,
    seconds: int = 450,
    results: Path = Path("benchmarks/results"),
    only: str = "",
) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if only:
        kind, name, file = only.split("=")
        measure = of_library if kind == "library" else of_pair
        measure(name, cells, block, device, Path(file))
        return
    if device == "cpu" and pairs == PAIRS:
        raise UserError(
            "PyTorch finds no GPU here. Take a machine with one, or try it with --pairs tiny:tiny."
        )
    ends = perf_counter() + seconds
    known = dict[str, dict[str, dict[str, Any]]]()
    jobs = [("pair", pair) for pair in pairs.split(",")]
    jobs.insert(1, ("library", pairs.split(":")[0]))
    for cell, (kind, name) in product(
        cells.split(","), jobs
    ):  # each in a process of its own, one graph memory in each
        if perf_counter() > ends:
            break
        path = results / f"gpu-{kind}-{name.replace(':', '-')}-{cell}.json"
        command = [
            sys.executable,
            "-m",
            "benchmarks.gpu",
            "--only",
            f"{kind}={name}={path}",
            "--cells",
            cell,
        ]
        try:
            subprocess.run(
                [*command, "--block", str(block)],
                timeout=max(ends - perf_counter(), 1),
                check=False,
            )
        except subprocess.TimeoutExpired:
            print(f"{name} {cell}: no time was left for all of it", flush=True)
        if path.exists():
            found = read_json(path)
            known.setdefault(kind, {}).setdefault(name, found)["cells"] |= found["cells"]
            path.unlink()
    library = {name: one["cells"] for name, one in known.get("library", {}).items()}
    found = {
        "pairs": list(known.get("pair", {}).values()),
        "library": library,
        "version": __version__,
    }
    write_json(
        results / "gpu.json", {**found, "machine": machine(), "date": date.today().isoformat()}
    )
    table = [
        line
        for one in found["pairs"]
        for line in lines(one, library.get(one["pair"].split(":")[0], {}))
    ]
    print(
        "\n".join(
            [
                HEADER,
                "|---|" + "---:|" * 16,
                *table,
                *chain.from_iterable(map(verdicts, found["pairs"])),
            ]
        )
    )


if __name__ == "__main__":
    run(main)
