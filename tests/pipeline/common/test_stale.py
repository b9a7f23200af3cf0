"""Whatever is published can be found to be stale, and can be fresh again: it names its code, or a result names it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gistgate.files import write_json
from pipeline.common.closure import ROOT
from pipeline.common.code import KEY, PARTS, add_to_result, made_by, write_result
from pipeline.common.stale import stale, why_stale

MODULE = "pipeline.common.paths"
WORKING = {
    "benchmarks/drafting.py": "the pieces of an unfinished measurement",
    "benchmarks/drafting_choices.py": "what was chosen before the measurement",
    "benchmarks/drafting_vocabulary.py": "what was chosen before the measurement",
    "benchmarks/gpu_checks.py": "an answer to the process that asked",
    "benchmarks/rounds.py": "the cases of an unfinished measurement",
    "benchmarks/served.py": "answers of an unfinished measurement",
    "pipeline/studies/real/propose.py": "a choice in a copy of the project",
    "pipeline/studies/real/study.py": "what belongs to a copy of the project",
    "tests/faults/kills/__main__.py": "a list for its own processes",
    "tests/faults/kills/records.py": "the state of an unfinished pass",
    "tests/faults/sweep.py": "the pieces that have passed",
}
"""Modules that may write JSON without naming their code, each with what that JSON is."""
FOLDERS = ("benchmarks", "pipeline/report", "pipeline/studies", "pipeline/stages", "tests/faults")


def plain_writes(path: Path) -> Iterator[str]:
    """The first arguments of all calls of `write_json` in a module."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "write_json":
            yield ast.unparse(node.args[0])


def modules() -> list[Path]:
    found = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    return [*found, ROOT / "pipeline/seeds.py"]


def is_output(path: Path, place: str) -> bool:
    """Whether a module writes there as a stage of a dvc.yaml, below reports/, data/ or models/."""
    name = path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
    graphs = [ROOT / "dvc.yaml", *(ROOT / "pipeline/studies").glob("*/dvc.yaml")]
    command = re.compile(rf"python -m {re.escape(name)}\s")
    return any(command.search(graph.read_text()) for graph in graphs) and "results" not in place.casefold()


def test_every_writer_of_a_published_file_names_its_code():
    """`write_result`, `write_published` and `add_to_result` do; `write_json` does not."""
    plain = {
        f"{path.relative_to(ROOT)}: {place}"
        for path in modules()
        if path.relative_to(ROOT).as_posix() not in WORKING
        for place in plain_writes(path)
        if not is_output(path, place)
    }
    assert plain == set()


def test_a_plain_write_of_a_result_would_be_found(tmp_path: Path):
    module = tmp_path / "bench.py"
    module.write_text("write_json(RESULTS / 'a.json', {})\nwrite_result(RESULTS / 'b.json', {})\n")
    assert list(plain_writes(module)) == ["RESULTS / 'a.json'"]


@pytest.mark.parametrize("name", ["frontier.csv", "speed.png", "disturbances.jsonl"])
def test_tables_and_figures_belong_to_the_result_that_names_them(tmp_path: Path, name: str):
    shown = tmp_path / "figures" / name
    shown.parent.mkdir()
    shown.write_text("1")
    assert stale((tmp_path,)) == {shown.as_posix(): "is named by no result, so that its code is not known"}
    write_result(tmp_path / "summary.json", {}, MODULE, files=[shown])
    assert stale((tmp_path,)) == {}
    shown.write_text("2")
    assert list(stale((tmp_path,))) == [shown.as_posix()]
    shown.write_text("1")
    write_json(tmp_path / "summary.json", {KEY: {**made_by(MODULE), "fingerprint": "0", "files": {}}})
    assert set(stale((tmp_path,))) == {shown.as_posix(), (tmp_path / "summary.json").as_posix()}


def test_a_figure_of_a_stale_result_is_stale(tmp_path: Path):
    shown = tmp_path / "speed.png"
    shown.write_text("1")
    write_result(tmp_path / "summary.json", {}, MODULE, files=[shown])
    text = (tmp_path / "summary.json").read_text()
    (tmp_path / "summary.json").write_text(text.replace(made_by(MODULE)["fingerprint"], "0"))
    assert stale((tmp_path,))[shown.as_posix()].startswith(
        f"shows {tmp_path / 'summary.json'}, which was made by other"
    )


def test_entries_of_several_commands_keep_their_own_code_and_become_fresh_one_by_one(tmp_path: Path):
    file = tmp_path / "counts.json"
    write_json(file, {"old": 1, "older": 2})
    add_to_result(file, {"old": 3}, MODULE)
    assert "holds older, which names no code" in stale((tmp_path,))[file.as_posix()]
    add_to_result(file, {"older": 4}, "pipeline.common.reading")
    assert stale((tmp_path,)) == {}
    changed = {PARTS: {"old": made_by(MODULE), "older": {**made_by(MODULE), "fingerprint": "0"}}}
    assert "holds older, which was made by other code" in str(why_stale(changed))
