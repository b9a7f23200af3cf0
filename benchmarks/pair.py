"""Two models, a file of prompts and certificates: how fast everything is on this machine, without a finished run.

    python -m benchmarks.pair TARGET DRAFT PROMPTS DEVELOPMENT [--certificates FOLDER,...] [--gate FOLDER]
        [--blocks 2,4,6,8] [--engines eager,compiled] [--batch 1] [--count 20] [--seconds 0]
        [--assisted K] [--lookup K] [--results FOLDER]

Models are hub ids or folders; PROMPTS and DEVELOPMENT are files such as the pipeline writes or with one prompt a line.
K of strict decoding, for each engine, and the best forms of transformers' speculation are those that are fastest on the
prompts of DEVELOPMENT, which are not timed. A certified setting runs at its own K. It is also timed on engines that its
certificate does not speak of, since a setting has a speed on each; `certified_on` says which engine the certificate
names. Methods come from `gistgate calibrate --out FOLDER`; one that holds for other models is left out with the reason.
Where an earlier run has chosen K of transformers' speculation, --assisted and --lookup give it. With --seconds the
measurement ends about then: what is not begun in its first two thirds is left out, and prompts are timed in the rest.
The result is written behind every batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from benchmarks.batches import batches_of
from benchmarks.bench import RESULTS, flat, ratios, save
from benchmarks.counts import counts, entries, names
from benchmarks.pair_field import Raced, on, said
from gistgate.build.asking import Asking
from gistgate.build.candidates import Workshop
from gistgate.build.models import load_target
from gistgate.build.wishes import Wishes
from gistgate.cli.reading import read_prompts
from gistgate.decoding.engines.choice import ENGINES
from gistgate.errors import UserError
from gistgate.forward.allocation import keep_freed_memory
from gistgate.identity import identify_model
from pipeline.common.entry import run
from pipeline.speed import baselines
from pipeline.speed.clock import Contender, Prompts, compiled, theirs
from pipeline.speed.race import Times, race, working

REFERENCES = ("generate", "assisted", *(f"{name}-{engine}" for name in ("plain", "strict") for engine in ENGINES))


def main(
    target: str,
    draft: str,
    prompts: str,
    development: str,
    certificates: str = "",
    gate: str = "",
    blocks: str = "2,4,6,8",
    engines: str = ",".join(ENGINES),
    batch: int = 1,
    count: int = 20,
    tried: int = 4,
    max_new_tokens: int = 128,
    threads: int = 2,
    seconds: float = 0.0,
    assisted: int | None = None,
    lookup: int | None = None,
    results: Path = RESULTS,
) -> None:
    started = monotonic()
    torch.set_num_threads(threads)
    chosen, tries = names(engines, ENGINES, "is no engine"), counts(blocks, "--blocks")
    loaded = load_target(target)
    keep_freed_memory(loaded.model.device)
    asking = Asking(read_prompts(prompts)[:count])
    shop = Workshop(loaded, Wishes(draft=draft, gate=gate or None), asking)
    raced = Raced(shop, {"max_new_tokens": max_new_tokens, "eos_ids": loaded.eos_ids})
    batches = batches_of(asking.encode(loaded), batch, "--batch")
    seen = Asking(read_prompts(development)[:tried]).encode(loaded)
    if shared := [ids for rows in batches for ids in rows if ids in seen]:
        raise UserError(
            f"{len(shared)} prompts of {prompts} are also in {development}: K would be chosen on what is timed. Name a "
            "file of other prompts."
        )
    certified = [one for place in (entries(certificates) if certificates else []) for one in shop.certified(place)]
    for sentence in shop.refused:
        print(f"Left out: {sentence}")
    if batch > 1 and (assisted, lookup) != (None, None):
        raise UserError("transformers' speculation takes single rows. Leave out --batch, or --assisted and --lookup.")
    keep = known({baselines.ASSISTED: assisted, baselines.LOOKUP: lookup})
    blocks_of, refused = baselines.chosen(raced, raced.request, seen, keep) if batch == 1 else ({}, {})
    strict = {engine: baselines.fastest([raced.strict(engine, k) for k in tries], seen).block for engine in chosen}
    print(
        f"K of transformers' speculation: {blocks_of}; of strict decoding: {strict}. Programs are built next.",
        flush=True,
    )
    slots = max(len(ids) for rows in batches for ids in rows) + max_new_tokens
    field = [
        Contender("generate", theirs(raced, raced.request), 0),
        *baselines.at(raced, raced.request, blocks_of),
        *(one for engine in chosen for one in on(engine, raced, strict[engine], certified)),
        # Last, since graphs of transformers change what others find of the memory on a GPU.
        Contender("generate-static-compiled", compiled(theirs(raced, raced.request), raced, slots), 0),
    ]
    end = started + seconds if seconds else float("inf")
    able, failed, firsts = built(field, batches[0], (started + 2 * end) / 3)
    about = {
        "target": asdict(identify_model(raced.target)),
        "draft": asdict(identify_model(raced.draft)),
        "batch": batch,
        "development": len(seen),
        "max_new_tokens": max_new_tokens,
        "strict_block": strict,
        "points": {one.name: said(one) for one in certified},
        "left_out": shop.refused,
        "failed": failed | refused,
        "first_call_seconds": firsts,
    }
    name = "pair" if batch == 1 else f"pair-batch-{batch}"

    def written(times: Times) -> bool:
        """Write what is known, since a long measurement may be stopped; whether there is time for another batch."""
        save(name, {**about, "contenders": counted(ratios(flat(times), REFERENCES), times)}, results)
        return monotonic() < end

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        race(able, batches, goes_on=written)


def known(blocks: Mapping[str, int | None]) -> baselines.Keep:
    """K of transformers' speculation: those that are given, and the others as they are chosen.

    Raises:
        UserError: nobody races at such a K.
    """
    for name, block in blocks.items():
        allowed = (*([baselines.DEFAULTS] if name == baselines.ASSISTED else []), *baselines.KS)
        if block is not None and block not in allowed:
            raise UserError(f"K = {block} of {name} is none of {', '.join(map(str, allowed))}. Give one of them.")
    return lambda name, choose: choose() if (block := blocks[name]) is None else {"block": block}


def built(
    field: Sequence[Contender], batch: Prompts, until: float
) -> tuple[list[Contender], dict[str, str], dict[str, float]]:
    """Who decodes this batch, why others do not, and the seconds of each first call, which builds programs."""
    able: list[Contender] = []
    failed, firsts = dict[str, str](), dict[str, float]()
    for contender in field:
        started = monotonic()
        if started > until:
            failed[contender.name] = "there was no time left to build its programs"
            continue
        works, why = working([contender], batch)
        able, failed = able + works, failed | why
        firsts[contender.name] = monotonic() - started
        print(f"{contender.name}: its first call took {firsts[contender.name]:.1f} seconds", flush=True)
    if not able:
        remedy = "" if firsts else " Give it more --seconds."
        raise UserError(f"Nothing can be timed; {field[0].name}: {failed[field[0].name]}.{remedy}")
    return able, failed, firsts


def counted(found: dict[str, dict[str, Any]], times: Times) -> dict[str, dict[str, Any]]:
    """The figures with the tokens written and the target's forwards."""
    for name, entry in found.items():
        forwards = times[name]["target_forwards"]
        entry["tokens"] = sum(times[name]["tokens"])
        entry["target_forwards"] = None if None in forwards else sum(forwards)
    return found


if __name__ == "__main__":
    run(main, kept=False)
