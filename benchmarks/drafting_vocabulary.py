"""How much of the vocabulary benchmarks.drafting leaves its draft: what is fastest on development prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.drafting_choices import FOR_COSTS, as_costs
from benchmarks.ladder import WHOLE, Ladder, draft_with
from benchmarks.workload import Workload
from gistgate.drafters.costs import Costs
from gistgate.files import read_json, read_json_lines, write_json
from gistgate.forward.output import Subset
from gistgate.observing.outlook import measure, outlook, strict_run
from pipeline.common.operating_point import Operating
from pipeline.labels.schema import REFERENCE


def counted(workload: Workload, size: int) -> Subset:
    """The most frequent tokens of the reference answers to training prompts, bound to the draft as it is."""
    answers, whole = [answer["ids"] for answer in read_json_lines(REFERENCE)], draft_with(workload, "none")
    return Subset.count(answers, size, workload.pair.tokenizer, whole, workload.request["eos_ids"])


def tried(
    workload: Workload,
    sizes: Sequence[int],
    strict: Operating,
    kind: str,
    ids: Sequence[list[int]],
    request: dict[str, Any],
    folder: Path,
) -> list[dict[str, Any]]:
    """What strict decoding promises on these prompts with a draft of each size, measured once and kept in `folder`."""
    seen = []
    for size in sizes:
        path = folder / f"vocabulary-{size}-{strict.block}.json"
        if not path.exists():
            subset = counted(workload, size)
            decoder = Ladder(workload, [WHOLE], {WHOLE: draft_with(workload, kind, subset)}).decoder(strict, WHOLE)
            costs = measure(decoder, ids[:FOR_COSTS], [strict.block], **request)
            accepted = strict_run(decoder, ids, strict.block, **request).histogram
            write_json(path, {"coverage": subset.coverage, "costs": asdict(costs), "accepted": accepted})
        seen.append(read_json(path))
    promised = promises([as_costs(one["costs"]) for one in seen], [one["accepted"] for one in seen], strict.block)
    return [
        {"size": size, "coverage": one["coverage"], **promise}
        for size, one, promise in zip(sizes, seen, promised, strict=True)
    ]


def promises(costs: Sequence[Costs], accepted: Sequence[Mapping[str, int]], block: int) -> list[dict[str, float]]:
    """What K = `block` promises with each draft; the target is the same, so that its costs are those of all together.

    Otherwise the noise of the target's own steps, measured again for every size, would choose the size.
    """
    step = fmean(one.step for one in costs)
    verify = {block: fmean(one.step * one.verification(block) for one in costs) / step}
    shared = [Costs(step, one.draft * one.step / step, verify) for one in costs]
    lengths = [{int(length): num for length, num in one.items()} for one in accepted]
    return [
        {"draft": one.draft, **asdict(outlook(one, length, block))} for one, length in zip(shared, lengths, strict=True)
    ]


def best_size(tried: Sequence[dict[str, Any]]) -> int:
    """The size with which strict decoding is fastest."""
    found: int = max(tried, key=lambda one: one["strict"])["size"]
    return found
