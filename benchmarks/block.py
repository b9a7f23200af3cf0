"""Which K suits which method: tokens per second over a sweep, side by side.

    python -m benchmarks.block [--methods strict,autojudge] [--ks 2,3,4,6,8,12] [--engine eager,compiled] [--write]

In the folder of a finished run, on development prompts, batch 1: a K that was chosen on timed prompts would flatter its
method. One engine comes after the other, and each has a result of its own: `block` is that of the eager engine,
`block-compiled` that of the compiled one. `--write` puts the proposals, those of the first engine, into
pipeline/studies/speed/params.yaml, and strict decoding's into `decoding.strict_block` of params.yaml. K changes a loose
method's texts, so it is part of its certificate, and `make speed` certifies the method at that K. A proposal is the
smallest K whose interval against the fastest K reaches 1: noise must not lengthen blocks.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import torch

from benchmarks.bench import RESULTS, save, side_by_side
from benchmarks.counts import counts, names
from benchmarks.workload import Workload
from gistgate.decoding.decoder import Decoder
from gistgate.decoding.engines.choice import ENGINES
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
    tried, engines = counts(ks, "--ks"), names(engine, ENGINES, "is no engine")
    workload = Workload.load(prompts, "development")
    known = [STRICT, *workload.points]
    chosen = names(methods, known, "is not certified here") if methods else [STRICT, *workload.headline]
    found = {kind: swept(workload, chosen, tried, kind, results) for kind in engines}
    if write:
        propose({name: one["proposed"] for name, one in found[engines[0]].items()})


def result(engine: str) -> str:
    """Name of the result of an engine."""
    return "block" if engine == "eager" else f"block-{engine}"


def swept(workload: Workload, methods: list[str], ks: list[int], engine: str, results: Path) -> dict[str, Any]:
    """What every method does at every K on one engine, which is written as well."""
    found = {name: sweep(workload, name, ks, engine) for name in methods}
    payload = {"pair": workload.pair.name, "engine": engine, "methods": found}
    save(result(engine), payload, results, lambda: figure(payload))
    return found


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
    run(main, kept=False)
