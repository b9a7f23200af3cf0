"""Write the tables of `benchmarks.block` into docs/performance.md, between its markers.

python -m benchmarks.block_page
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.bench import RESULTS
from benchmarks.block import result
from benchmarks.speed_page import PAGE
from gistgate.errors import UserError
from gistgate.files import read_json
from pipeline.common.entry import run
from pipeline.report.markdown import table
from pipeline.report.markers import renew

SWEEPS = {"blocks": "eager", "blocks_compiled": "compiled"}
"""Engines by the names of the markers: all methods on the eager engine, and some on the compiled one."""


def main() -> None:
    for name, engine in SWEEPS.items():
        renew(PAGE, name, sweep(methods_of(engine)))
    print(f"Written: {PAGE}")


def methods_of(engine: str, results: Path = RESULTS) -> Mapping[str, Mapping[str, Any]]:
    """What was measured on an engine.

    Raises:
        UserError: the result is about another engine.
    """
    path = results / f"{result(engine)}-cpu.json"
    found: Mapping[str, Any] = read_json(path)
    if found["engine"] != engine:
        raise UserError(
            f"{path} is about the engine '{found['engine']}'. Run `python -m benchmarks.block --engine {engine}` again."
        )
    methods: Mapping[str, Mapping[str, Any]] = found["methods"]
    return methods


def sweep(methods: Mapping[str, Mapping[str, Any]]) -> str:
    """Tokens per second of each method at each K, the fastest in bold, and the proposed K."""
    ks = sorted(int(k) for k in next(iter(methods.values()))["tokens_per_second"])
    rows = []
    for name in sorted(methods):
        one = methods[name]
        rates = {k: f"{one['tokens_per_second'][str(k)]:.0f}" for k in ks}
        rates[one["fastest"]] = f"**{rates[one['fastest']]}**"
        rows.append([name, *rates.values(), str(one["proposed"])])
    return table(("method", *(f"K = {k}" for k in ks), "proposed"), rows, numbers=True)


if __name__ == "__main__":
    run(main, kept=False)
