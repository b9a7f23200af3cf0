"""What rounding decides of labels and of a gate's probabilities: the same mismatches read and rolled out again.

    python -m pipeline.studies.labels.rounding [--rows 96] [--dtype float32]     -> reports/studies/rounding.json

A label is the outcome of one greedy continuation. In bfloat16 near ties of that continuation fall as its batch rounds
them, and a target that solves a problem only just may then lose the answer for no reason of meaning. The rollouts are
made again three times, each to its end or to its given answer: as they were, in batches of half as many rows, and with
the target in another dtype. The second and third are compared with the first; the share of outcomes that differ is
noise that no head can learn. What differs between the first and the labels comes from rounding and from rollouts that
the labels stopped early. The gate's P(kept) is computed from states of both dtypes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from gistgate.errors import UserError
from gistgate.gates.gate import Gate
from pipeline.common.code import running, write_result
from pipeline.common.decoders import read_prompts, request_of
from pipeline.common.entry import run
from pipeline.common.paths import HEADS
from pipeline.labels.cost import Cost
from pipeline.labels.features import FeatureReader
from pipeline.labels.labelling import Labeller, in_order
from pipeline.labels.tables import Table, num_rows, picked
from pipeline.labels.texts import Texts, read_labels, read_references
from pipeline.labels.tools import tools_of
from pipeline.pairs.pair import Pair, load_pair
from pipeline.params import Params, read_params
from pipeline.tasks.loading import load_task

OUTPUT = Path("reports/studies/rounding.json")


def main(
    rows: Annotated[int, typer.Option(help="Mismatches to roll out again.", min=1)] = 96,
    dtype: Annotated[str, typer.Option(help="Dtype of torch that is compared with the pair's own.")] = "float32",
) -> None:
    torch.set_grad_enabled(False)
    wanted = dtype_of(dtype)
    params, (all_labels, texts) = read_params(), read_labels()
    pair, gate = load_pair(params), Gate.load(HEADS / params.train.headline_head)
    table, own = drawn(all_labels, rows, params.seed), str(pair.target.dtype).removeprefix("torch.")
    harm = float((table["greedy_kept"] == 0).double().mean())
    found: dict[str, Any] = {
        "pair": params.pair,
        "task": params.task,
        "dtype": own,
        "rows": num_rows(table),
        "harm": harm,
    }

    def add(name: str, entry: dict[str, Any]) -> None:
        found[name] = entry
        print(name, entry, flush=True)
        write_result(OUTPUT, found, running())  # the next part may take an hour

    labels, first_kept = table["greedy_kept"], kept(params, pair, table, texts)
    add("labels", {"outcomes": differing(labels, first_kept)})
    narrow = replace(params, label=replace(params.label, batch_size=max(1, params.label.batch_size // 2)))
    add("half the rows", {"outcomes": differing(first_kept, kept(narrow, pair, table, texts))})
    first = features(params, pair, gate, table, texts)
    pair = replace(pair, target=pair.target.to(wanted))
    read = compared(gate, first, features(params, pair, gate, table, texts))
    add(dtype, read)
    add(dtype, {"outcomes": differing(first_kept, kept(params, pair, table, texts)), **read})


def dtype_of(name: str) -> torch.dtype:
    """The dtype of this name.

    Raises:
        UserError: torch has none.
    """
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise UserError(f"There is no dtype '{name}'. Use float32, float16 or bfloat16.")
    return found


def drawn(labels: Table, rows: int, seed: int) -> Table:
    """So many of the labels, drawn at random, in their order; all of them if there are fewer."""
    chosen = torch.randperm(num_rows(labels), generator=torch.Generator().manual_seed(seed))[:rows]
    return in_order(picked(labels, chosen.sort().values))


def kept(params: Params, pair: Pair, table: Table, texts: Texts) -> Tensor:
    """Whether the greedy rollouts behind the draft tokens keep the meaning: 1, 0, or -1 where nobody knows [N].

    No rollout stops because it writes a known text again. Behind the audited ones, which go on to their end, a rollout
    stops once the answer is given, which is what its score reads.
    """
    prompts = read_prompts("train")
    tools = tools_of(params, pair, load_task(params), prompts, read_references(), "plain", Cost())
    asked = {**table, "greedy_kept": torch.full_like(table["greedy_kept"], -1)}
    asked["chosen"] = torch.ones(num_rows(table), dtype=torch.bool)
    strict = Labeller(tools, prompts, replace(params.label, rejoin=None, rollouts=1), params.seed)
    return strict.greedy_kept(asked, texts)


def differing(first: Tensor, other: Tensor) -> dict[str, int]:
    """How many outcomes [N] were kept and are lost, and how many the reverse."""
    return {"lost": int(((first == 1) & (other == 0)).sum()), "won": int(((first == 0) & (other == 1)).sum())}


def features(params: Params, pair: Pair, gate: Gate, table: Table, texts: Texts) -> Table:
    """What the gate reads at the mismatches, computed with this pair."""
    prompts = read_prompts("train")
    reader = FeatureReader(pair, prompts, gate.features, params.decoding.block)
    return reader.read(table, texts, params.decoding.batch_size, **request_of(prompts, pair))


def compared(gate: Gate, first: Table, other: Table) -> dict[str, Any]:
    """How far two readings of the same mismatches differ."""
    p, p_other = probabilities(gate, first), probabilities(gate, other)
    return {
        "same_target_token": int((first["same_target"] == other["same_target"]).sum()),
        "mean_difference": float((p - p_other).abs().mean()),
        "largest_difference": float((p - p_other).abs().max()),
        "spread": float(p.std()),
    }


def probabilities(gate: Gate, read: Mapping[str, Tensor]) -> Tensor:
    """P(kept) of the gate at every mismatch [N]."""
    return gate.probability(torch.cat([read[name] for name in gate.features], dim=-1))


if __name__ == "__main__":
    run(main)
