"""SENSE taken apart, and what the size of its datastore is worth, in one run.

    python -m pipeline.studies.retrieval.bench_drafters [--prompts 16] [--scored 200] [--sizes 10,20,40,80,160]

In the folder of a finished run after `make retrieval`. SENSE runs at the setting that is certified for its chain;
without its states, without its soft gate, and without both, and all four again as trees. Parts of it hold no
certificate of their own: `difference` says what they lose on `scored` test prompts. Stores of fewer training prompts
draft for strict decoding. Speed one row at a time on the first prompts, eager engine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from benchmarks.bench import RESULTS, ratios, save, side_by_side
from benchmarks.counts import counts
from benchmarks.workload import Workload
from gistgate.decoding.batches import decode_all
from gistgate.decoding.decoder import Decoder
from gistgate.drafters.base import Drafter
from gistgate.errors import UserError
from gistgate.forward.context import num_ids
from gistgate.optional.retrieval.sen import SenDrafter
from gistgate.request.statistics import total
from gistgate.rules import make_rule
from pipeline.common.decoders import make_drafter, read_prompts
from pipeline.common.entry import run
from pipeline.common.operating_point import Operating, operating_point
from pipeline.report.paired_statistics import accuracy_difference
from pipeline.speed.clock import Contender, ours
from pipeline.studies.retrieval.drafters import store_for
from pipeline.studies.retrieval.params import REPORTS, retrieval_params
from pipeline.tasks.loading import load_task

METHOD = "sen-sense"
PARTS = {
    "SENSE": ("sen", True),
    "without states": ("sen-lexical", True),
    "without soft gate": ("sen", False),
    "without both": ("sen-lexical", False),
    "tree": ("sen-tree", True),
    "tree without states": ("sen-tree-lexical", True),
    "tree without soft gate": ("sen-tree", False),
    "tree without both": ("sen-tree-lexical", False),
    "corpus + exact": ("corpus", False),
    "prompt lookup + exact": ("lookup", False),
}
"""Drafter, and whether the soft gate decides."""
STORE = "exact, store of "


def main(
    prompts: int = 16, scored: int = 200, sizes: str = "10,20,40,80,160", threads: int = 1, results: Path = RESULTS
) -> None:
    torch.set_num_threads(threads)
    tried = counts(sizes, "--sizes") if sizes else []
    workload, point = Workload.load(prompts), certified()
    drafters: dict[str, tuple[Drafter | None, bool]] = {"plain": (None, False)}
    drafters |= {name: (make_drafter(workload.pair, drafter), soft) for name, (drafter, soft) in PARTS.items()}
    store = store_for(workload.pair.target)
    drafters |= {f"{STORE}{size}": (SenDrafter(store.first(size)), False) for size in tried}
    decoders = {name: decoder(workload, drafter, point, soft) for name, (drafter, soft) in drafters.items()}
    field = [Contender(name, ours(one, workload.request), one.block) for name, one in decoders.items()]
    measured = ratios(side_by_side(field, [[ids] for ids in workload.ids]), ("plain", "SENSE"))
    for name, quality in losses(workload, decoders, scored).items():
        measured[name] |= quality
        tau, loss = quality["mean_accepted_length"], quality["accuracy_difference"]["mean"]
        print(f"{name:24} tau {tau:.2f} difference {loss:+.3f}", flush=True)
    payload = {
        "pair": workload.pair.name,
        "block": point.block,
        "scored": scored,
        "settings": point.settings,
        "keys": {str(size): store.first(size).config.num_keys for size in tried} | {"all": store.config.num_keys},
        "arms": measured,
    }
    save("drafters", payload, results, lambda: figure(payload))


def certified() -> Operating:
    """Where SENSE may run.

    Raises:
        UserError: nothing is certified for it.
    """
    point = operating_point(retrieval_params(), METHOD, reports=REPORTS)
    if not point.certified:
        raise UserError(
            f"Nothing is certified for '{METHOD}' in this folder. Run `make retrieval` with a wider budget."
        )
    return point


def decoder(workload: Workload, drafter: Drafter | None, point: Operating, soft: bool) -> Decoder:
    """The decoder of one arm."""
    return Decoder(
        workload.pair.target,
        drafter,
        make_rule(point.rule, **point.settings) if soft else make_rule("exact"),
        0 if drafter is None else point.block,
        tokenizer=workload.pair.tokenizer,
        vocabulary=num_ids(workload.pair.tokenizer),
    )


def losses(workload: Workload, decoders: dict[str, Decoder], count: int) -> dict[str, dict[str, Any]]:
    """Accepted length, loose tokens, and accuracy against plain decoding, by arm."""
    task, prompts = load_task(workload.params), read_prompts("test")[:count]
    scores, counted = {}, {}
    for name, one in decoders.items():
        answers = decode_all(
            one,
            [prompt["ids"] for prompt in prompts],
            batch_size=workload.params.decoding.batch_size,
            seeds=list(range(len(prompts))),
            **workload.request,
        )
        texts = [task.text(workload.pair.tokenizer, answer.ids) for answer in answers]
        scores[name] = [task.score(prompt["doc"], text) for prompt, text in zip(prompts, texts, strict=True)]
        counted[name] = total([answer.statistics for answer in answers])
    return {
        name: {
            "mean_accepted_length": counted[name].mean_accepted_length,
            "loose_per_100": counted[name].loose_per_100,
            "accuracy_difference": accuracy_difference(scores[name], scores["plain"]).as_dict(),
        }
        for name in decoders
    }


def figure(payload: dict[str, Any]) -> Any:
    """Speed against plain decoding and accepted length, by keys in the store."""
    from matplotlib import pyplot as plt

    from pipeline.report.figures import STYLE

    arms = {payload["keys"][name.removeprefix(STORE)]: arm for name, arm in payload["arms"].items() if STORE in name}
    arms[payload["keys"]["all"]] = payload["arms"]["without soft gate"]
    with plt.rc_context(STYLE):
        drawn, (left, right) = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
        sizes = sorted(arms)
        speeds = [arms[size]["vs_plain"] for size in sizes]
        middle = [one["mean"] for one in speeds]
        errors = [[one["mean"] - one["low"] for one in speeds], [one["high"] - one["mean"] for one in speeds]]
        left.errorbar(sizes, middle, errors, marker="o", ms=4, capsize=2)
        left.set_ylabel("speed against plain, 90 %")
        right.plot(sizes, [arms[size]["mean_accepted_length"] for size in sizes], marker="o", ms=4)
        right.set_ylabel("tau")
        for axes in (left, right):
            axes.set_xscale("log")
            axes.set_xlabel("keys in the store")
    return drawn


if __name__ == "__main__":
    run(main, kept=False)
