"""Which K suits which method: tokens per second over a sweep, side by side.

    python -m benchmarks.block [--methods strict,autojudge] [--ks 2,3,4,6,8,12] [--engine eager,compiled] [--write]

In the folder of a finished run, on development prompts, batch 1, one engine after the other: a K that was chosen on
timed prompts would flatter its method. `--write` puts the proposals, those of the first
engine, into pipeline/studies/speed/params.yaml, and strict decoding's into `decoding.strict_block` of params.yaml. K
changes a loose method's texts, so it is part of its certificate, and `make speed` certifies the method at that K. A
proposal is the smallest K whose interval against the fastest K reaches 1: noise must not lengthen blocks.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import torch

from benchmarks.bench import RESULTS, save, side_by_side
from benchmarks.workload import Workload
from gistgate.decoding.decoder import Decoder
from gistgate.errors import UserError
from gistgate.files import read_text, write_text
from gistgate.observing.intervals import ratio_of_sums
from pipeline.common.entry import run
from pipeline.common.paths import PARAMS
from pipeline.speed.clock import Contender, ours
from pipeline.studies.speed.params import FILE

STRICT = "strict"


def main(
    methods: str = "",
    ks: str = "2,3,4,5,6,8,10,12",
    engine: str = "eager",
    prompts: int = 12,
    threads: int = 1,
    write: bool = False,
    results: Path = RESULTS,
) -> None:
    torch.set_num_threads(threads)
    workload = Workload.load(prompts, "development")
    names = methods.split(",") if methods else [STRICT, workload.headline]
    if unknown := [name for name in names if name != STRICT and name not in workload.points]:
        raise UserError(f"'{unknown[0]}' is not certified here. Known: {', '.join([STRICT, *workload.points])}.")
    engines = engine.split(",")
    found = {
        label(name, kind, engines): sweep(workload, name, [int(k) for k in ks.split(",")], kind)
        for kind in engines
        for name in names
    }
    payload = {"pair": workload.pair.name, "engine": engine, "methods": found}
    save("block", payload, results, lambda: figure(payload))
    if write:
        own = {name: found[label(name, engines[0], engines)]["proposed"] for name in names}
        propose(own)


def label(name: str, engine: str, engines: list[str]) -> str:
    """A method's name among the results, with its engine where there are several."""
    return name if len(engines) == 1 else f"{name}, {engine}"


def sweep(workload: Workload, name: str, ks: list[int], engine: str) -> dict[str, Any]:
    """One method at every K."""
    builds = engine == "compiled"
    field = [
        Contender(str(k), ours(decoder_of(workload, name, k, engine), workload.request), k, builds=builds) for k in ks
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        times = side_by_side(field, [[ids] for ids in workload.ids], say=False)
    seconds = {int(k): entry["seconds"] for k, entry in times.items()}
    rates = {k: sum(times[str(k)]["tokens"]) / sum(entry) for k, entry in seconds.items()}
    best = min(seconds, key=lambda k: sum(seconds[k]))
    against = {k: ratio_of_sums(seconds[best], entry) for k, entry in seconds.items()}
    proposed = min(k for k, interval in against.items() if k == best or interval.high >= 1)
    rounded = {k: round(rate) for k, rate in rates.items()}
    print(f"{name}, {engine}: {rounded} tokens per second; proposed K {proposed}", flush=True)
    return {
        "proposed": proposed,
        "fastest": best,
        "tokens_per_second": {str(k): rate for k, rate in rates.items()},
        "vs_fastest": {str(k): interval.as_dict() for k, interval in against.items()},
    }


def decoder_of(workload: Workload, name: str, block: int, engine: str) -> Decoder:
    """A method, or strict decoding, at one K."""
    return workload.strict(block, engine) if name == STRICT else workload.method(name, engine, block)


def propose(proposals: dict[str, int], strict: Path = PARAMS, others: Path = FILE) -> None:
    """Write the proposals into the two files of parameters, with their comments kept."""
    own = {name: block for name, block in proposals.items() if name != STRICT}
    if STRICT in proposals:
        edit(strict, lambda params: params["decoding"].update(strict_block=proposals[STRICT]))
    if own:
        edit(others, lambda params: params["blocks"].update(own))


def edit(path: Path, change: Callable[[Any], None]) -> None:
    """Change a YAML file and keep its comments.

    Raises:
        UserError: the library that keeps comments is missing.
    """
    try:
        from ruamel.yaml import YAML
    except ImportError as error:
        raise UserError(f"Writing {path} needs ruamel.yaml, which comes with DVC. Run `make install`.") from error
    editor = YAML()
    editor.preserve_quotes, editor.width = True, 120
    editor.indent(mapping=2, sequence=4, offset=2)
    editor.representer.add_representer(type(None), lambda to, _: to.represent_scalar("tag:yaml.org,2002:null", "null"))
    content, text = editor.load(read_text(path)), StringIO()
    change(content)
    editor.dump(content, text)
    write_text(path, text.getvalue())
    print(f"Written: {path}")


def figure(payload: dict[str, Any]) -> Any:
    """Drawn only where matplotlib is installed."""
    from benchmarks.figures import block_figure

    return block_figure(payload)


if __name__ == "__main__":
    run(main)
