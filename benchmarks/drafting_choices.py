"""What benchmarks.drafting takes from development prompts: costs, policies for ends of drafts, assisted generation.

Everything is measured once and kept in the folder of the measurement, so that a resumed one uses the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.ladder import QUANTISED, STOPPING, STRICT, TEXTS, WHOLE, Ladder
from gistgate.drafters.costs import Costs
from gistgate.drafters.stopping import Stopping, load_stopping
from gistgate.errors import UserError
from gistgate.files import read_json, write_json
from gistgate.observing.drafting import DraftRecorder, fit
from gistgate.observing.outlook import measure
from pipeline.common.operating_point import Operating
from pipeline.pairs.pair import Pair
from pipeline.speed.baselines import assisted, fastest
from pipeline.speed.clock import Contender, theirs

ASSISTED = "assisted.json"
"""Where the choice of assisted generation is kept."""
FOR_COSTS, FOR_ASSISTED = 2, 4
"""Prompts for these; the policies take all, since they need many draft tokens."""


def prepare(
    ladder: Ladder,
    points: Mapping[str, Operating],
    ids: Sequence[list[int]],
    request: dict[str, Any],
    folder: Path,
    batch: int = 1,
) -> None:
    """Measure and choose what is not in `folder` yet; transformers assists one row at a time.

    Costs are those of one row, so that batches need them for ends of drafts alone.
    """
    block = max(point.block for point in points.values())
    ends = bool({STOPPING, TEXTS} & set(ladder.steps))
    for name in ladder.drafts if batch == 1 or ends else ():
        if not costs_file(folder, name).exists():
            strict = ladder.decoder(Operating(STRICT, "exact", "model", block), name)
            costs = measure(strict, ids[:FOR_COSTS], sorted({1, (block + 1) // 2, block}), **request)
            write_json(costs_file(folder, name), asdict(costs))
    if ends:
        for method, point in points.items():
            if not policy_file(folder, method).exists():
                fitted(ladder, point, ids, request, folder).save(policy_file(folder, method))
    if batch == 1 and not (folder / ASSISTED).exists():
        write_json(folder / ASSISTED, best_assisted(ladder, ids[:FOR_ASSISTED], request))


def fitted(
    ladder: Ladder, point: Operating, ids: Sequence[list[int]], request: dict[str, Any], folder: Path
) -> Stopping:
    """The policy for ends of drafts of a method, with the draft model of that step."""
    draft, recorder = ladder.draft_at(STOPPING), DraftRecorder()
    recording = ladder.decoder(point, draft).having(observer=recorder)
    for one in ids:
        recording.generate([one], **request)
    return fit(recorder.rounds, costs_of(folder, draft), point.rule, point.block)


def best_assisted(ladder: Ladder, ids: Sequence[list[int]], request: dict[str, Any]) -> dict[str, Any]:
    """The draft, whole or quantised, and the K with which transformers' assisted generation is fastest.

    Where transformers refuses this pair there is `failed` in their place, the reason: the others can still be timed.
    """
    drafts = [name for name in ladder.drafts if name in (WHOLE, QUANTISED)]
    tried = [(name, one) for name in drafts for one in assisted(pair_with(ladder, name), request)]
    try:
        best = fastest([one for _, one in tried], ids)
    except UserError as error:
        return {"failed": str(error)}
    return {"draft": next(name for name, one in tried if one is best), "block": best.block}


def assisted_as_chosen(ladder: Ladder, request: dict[str, Any], folder: Path) -> list[Contender]:
    """transformers' assisted generation at what development prompts chose; nothing where it does not run."""
    said = read_json(folder / ASSISTED)
    if "failed" in said:
        return []
    return [Contender("assisted", theirs(pair_with(ladder, said["draft"]), request, said["block"]), said["block"])]


def pair_with(ladder: Ladder, name: str) -> Pair:
    """The pair with the draft model of a step."""
    return replace(ladder.workload.pair, draft=ladder.drafts[name])


def policy_of(folder: Path, method: str) -> Stopping | None:
    """The policy of a method; None where no step has one."""
    return load_stopping(policy_file(folder, method)) if policy_file(folder, method).exists() else None


def costs_of(folder: Path, name: str) -> Costs:
    """The costs that were measured with the draft of a step."""
    return as_costs(read_json(costs_file(folder, name)))


def as_costs(value: Mapping[str, Any]) -> Costs:
    """Costs as they were written."""
    return Costs(value["step"], value["draft"], {int(block): cost for block, cost in value["verify"].items()})


def policy_file(folder: Path, method: str) -> Path:
    """Where the policy of a method is kept."""
    return folder / f"stopping-{method}.json"


def costs_file(folder: Path, name: str) -> Path:
    """Where the costs with a draft are kept."""
    return folder / f"costs-{name}.json"
