"""What it costs the target to read and judge a tree of 64 nodes, against a chain of 64 tokens.

    python -m pipeline.studies.trees.bench [target] [rounds]      writes benchmarks/results/trees-<cpu|gpu>.json

Both stand behind the same text in the same cache and are taken back afterwards. `forward` is the target's reading
alone; `verification` adds the strict rule and keeping the accepted path in the cache. Rounds alternate, which of the
two begins alternates as well; ratios are per round, the interval is a bootstrap over rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Annotated, Any

import numpy as np
import torch
import typer
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from gistgate.block import Block
from gistgate.errors import UserError, first_line
from gistgate.forward.reader import Reader
from gistgate.observing.race import synchronise
from gistgate.optional.trees.judging import judge
from gistgate.optional.trees.masks import tree_layout
from gistgate.optional.trees.shape import depths
from gistgate.rules.base import settle
from gistgate.rules.exact import Exact
from pipeline.common.code import running, write_result
from pipeline.common.entry import run
from pipeline.common.paths import BENCHMARK_RESULTS, EMBEDDED
from pipeline.report.paired_statistics import interval
from pipeline.speed.clock import machine

NODES, DEPTH, TEXT = 64, 8, 256
"""Nodes of the tree (tokens of the chain), its depth, and tokens of the text before."""


class Bench:
    """One text in the target's cache, and a draft behind it."""

    def __init__(self, target: PreTrainedModel) -> None:
        self.target, vocabulary = target, target.config.get_text_config().vocab_size
        generator = torch.Generator().manual_seed(0)
        text = torch.randint(vocabulary, (1, TEXT), generator=generator).to(target.device)
        self.last, self.ids = text[:, -1:], torch.randint(vocabulary, (1, NODES), generator=generator).to(text)
        self.valid = torch.ones_like(self.ids, dtype=torch.bool)
        self.parents = bushy(generator).to(text)
        self.reader = Reader(target, 1)
        self.reader.read(text[:, :-1], None, keep=1)

    def read(self, parents: Tensor | None) -> Tensor:
        """The target's rows behind the text and behind every node [1, N + 1, V]."""
        layout = None if parents is None else tree_layout(parents)
        return self.reader.read(torch.cat([self.last, self.ids], dim=1), None, NODES + 1, layout)

    def forward(self, parents: Tensor | None) -> float:
        """Seconds of one reading."""
        return self._timed(lambda: self.read(parents))

    def verification(self, parents: Tensor | None) -> float:
        """Seconds of one reading, the verdict, and keeping what was accepted."""

        def verify() -> None:
            block = Block(self.ids, self.valid, self.read(parents))
            if parents is None:
                self.reader.keep(NODES, settle(Exact(), block, {}).length.tolist())
            else:
                judged = judge(block, parents, lambda paths, _: (paths, settle(Exact(), paths, {})))
                assert judged.paths is not None
                self.reader.keep_paths(NODES, judged.paths)

        return self._timed(verify)

    def _timed(self, act: Callable[[], object]) -> float:
        synchronise(self.target.device)
        started = perf_counter()
        act()
        synchronise(self.target.device)
        seconds = perf_counter() - started
        self.reader.forget(self.reader.slots - TEXT + 1, [self.reader.known[0] - TEXT + 1])
        return seconds


def bushy(generator: torch.Generator) -> Tensor:
    """The parents of a random tree of that size and depth [1, N]: a chain of full depth, then branches anywhere."""
    parents = list(range(-1, DEPTH - 1))
    depth = list(range(1, DEPTH + 1))
    while len(parents) < NODES:
        parent = int(torch.randint(-1, len(parents), (1,), generator=generator))
        if parent < 0 or depth[parent] < DEPTH:
            parents.append(parent)
            depth.append(1 if parent < 0 else depth[parent] + 1)
    return torch.tensor([parents])


@torch.inference_mode()
def compare(target: PreTrainedModel, rounds: int) -> dict[str, Any]:
    """Milliseconds of both sides, and their ratios."""
    bench = Bench(target)
    found: dict[str, Any] = {
        "nodes": NODES,
        "depth": int(depths(bench.parents).max()),
        "leaves": NODES - len(set(bench.parents[0].tolist()) - {-1}),
        "text": TEXT,
        "rounds": rounds,
    }
    for kind, measure in (("forward", bench.forward), ("verification", bench.verification)):
        measure(None), measure(bench.parents)
        rows = []
        for turn in range(rounds):
            sides = (None, bench.parents) if turn % 2 else (bench.parents, None)
            seconds = {side is not None: measure(side) for side in sides}
            rows.append((seconds[True], seconds[False]))
        found[kind] = summary(np.array(rows))
    return found


def summary(seconds: np.ndarray) -> dict[str, Any]:
    """Medians in milliseconds, and the median ratio with a bootstrap interval over rounds, for `[rounds, 2]`."""
    ratios = seconds[:, 0] / seconds[:, 1]
    found = interval(np.median, ratios)
    tree, chain = 1000 * np.median(seconds, axis=0)
    return {
        "milliseconds": {"tree": float(tree), "chain": float(chain)},
        "ratio": {"median": found.mean, "low": found.low, "high": found.high},
    }


def loaded(name: str, device: str) -> PreTrainedModel:
    """The model of this name on a device.

    Raises:
        UserError: it cannot be read.
    """
    try:
        return AutoModelForCausalLM.from_pretrained(name).to(device).eval()
    except (OSError, ValueError) as error:  # the latter where a folder holds something else
        raise UserError(
            f"The model {name} could not be read ({first_line(error)}). Run `dvc repro pair` if it is the embedded "
            "pair's target, else name a folder that holds a model, or a hub id."
        ) from error


def main(
    name: Annotated[str, typer.Argument(help="Hub id or folder of the model.")] = str(EMBEDDED / "target"),
    rounds: Annotated[int, typer.Argument(help="Rounds on either side.")] = 200,
) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    found = compare(loaded(name, device), rounds)
    for kind in ("forward", "verification"):
        one = found[kind]
        print(
            f"{kind}: tree {one['milliseconds']['tree']:.2f} ms, chain {one['milliseconds']['chain']:.2f} ms, ratio "
            f"{one['ratio']['median']:.3f} [{one['ratio']['low']:.3f}, {one['ratio']['high']:.3f}]"
        )
    path = BENCHMARK_RESULTS / f"trees-{'gpu' if device == 'cuda' else 'cpu'}.json"
    write_result(path, {**found, "machine": machine()}, running())


if __name__ == "__main__":
    run(main, kept=False)
