"""Which small changes of the core no test notices: mutants, made and judged by mutmut. On request, not in CI.

    python -m benchmarks.mutants                                                every file of the core, for hours
    python -m benchmarks.mutants --file gistgate/certificates/bernstein.py      one file, again too; may be repeated

The files of a folder are mutated in a copy of the project below .scratch/mutants, one small change at a time, and their
fast tests run for every mutant. An interrupted run goes on in its copy. Finished files are added to
benchmarks/results/mutants.json, with every survivor as file:line and change, and skipped by the next start; files that
were changed since leave it.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from pathlib import Path
from shutil import rmtree
from typing import Annotated, Any

import typer

from gistgate.errors import UserError
from gistgate.files import fingerprint, read_json
from pipeline.common.code import write_result
from pipeline.common.entry import run
from pipeline.common.paths import BENCHMARK_RESULTS, SCRATCH
from pipeline.common.reading import nearest
from pipeline.smoke import ROOT, copy_project, environment

OUTPUT = BENCHMARK_RESULTS / "mutants.json"
COPIES = SCRATCH / "mutants"
CERTIFICATES = ("bernstein", "betting", "bounds", "differences", "fixed_sequence", "holds", "scores", "search", "tango")
DECODING = tuple(f"tests/decoding/test_{name}.py" for name in ("greedy", "endings", "requests"))
TESTS = {
    "gistgate/rules/": ("tests/rules",),
    "gistgate/certificates/": ("tests/certificates",),
    "gistgate/decoding/": DECODING,
    "gistgate/request/": ("tests/request", *DECODING),
}
"""The tests that judge the mutants of a folder; of these mutmut runs those that reach the changed function."""
TIMEOUTS = dict.fromkeys((24, -24, 36, 152, 255), "timeout")
VERDICTS = {None: None, 2: None, 0: "survived", 5: "untested", 33: "untested", **TIMEOUTS}
"""What an exit status of mutmut's tests means, None for an interrupted one; with any other one the tests failed."""
SETTINGS = """[mutmut]
source_paths=
    gistgate
only_mutate=
    {files}
also_copy=
    {others}
pytest_add_cli_args=
    -p
    no:cacheprovider
    -m
    not slow and not long and not vllm
pytest_add_cli_args_test_selection=
    {tests}
process_isolation=forkserver
"""


def core() -> list[str]:
    """The files of rules, bounds, fixed sequence, commit and stop."""
    rules = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "gistgate/rules").glob("[!_]*.py"))
    certificates = [f"gistgate/certificates/{name}.py" for name in CERTIFICATES]
    return [*certificates, *rules, "gistgate/decoding/commit.py", "gistgate/request/stopping.py"]


def main(
    file: Annotated[list[str] | None, typer.Option(help="A file of the core; default: all.")] = None,
    processes: Annotated[int, typer.Option(help="Mutants that are judged side by side.")] = 2,
) -> None:
    """Judge the mutants of the files of one folder after another."""
    check_tool()
    names = file or [name for name in core() if name not in recorded()]
    for name in names:
        if name not in core():
            raise UserError(f"{name} is no file of the core. {nearest(name, core(), 'files')}")
    for folder, together in groupby(sorted(names), key=folder_of):
        files = list(together)
        slug = "-".join([folder.strip("/").replace("/", "-"), *(Path(name).stem for name in files)])
        for name, row in judge(files, COPIES / slug[:100], processes).items():
            record(name, row)


def check_tool() -> None:
    """Refuse to begin without mutmut.

    Raises:
        UserError: it is not installed.
    """
    try:
        version("mutmut")
    except PackageNotFoundError as error:
        raise UserError("mutmut is not installed. Run `pip install -c constraints.txt -e '.[mutants]'`.") from error


def folder_of(file: str) -> str:
    """The folder whose tests judge a file."""
    return next(folder for folder in TESTS if file.startswith(folder))


def judge(files: Sequence[str], place: Path, processes: int) -> dict[str, dict[str, Any]]:
    """The verdicts on all mutants of files that share their tests; their copy of the project goes at the end.

    Raises:
        UserError: mutmut failed, or the tests fail without any mutant.
    """
    place.mkdir(parents=True, exist_ok=True)
    copy_project(place, changes=())
    (place / "setup.cfg").write_text(settings(files, place))
    sources = {file: fingerprint(ROOT / file) for file in files}
    print(f"{', '.join(files)} in {place}", flush=True)
    with (place / "mutmut.log").open("w") as log:
        done = mutmut(place, "run", "--max-children", str(processes), stdout=log, stderr=subprocess.STDOUT)
    verdicts = {file: read_verdicts(place / "mutants" / f"{file}.meta") for file in files}
    if done.returncode or any(None in found.values() for found in verdicts.values()):
        raise UserError(
            f"mutmut did not finish {', '.join(files)}. The end of {place / 'mutmut.log'} says why; start again."
        )
    rows = {}
    for file, found in verdicts.items():
        shown = [survivor(file, mutmut(place, "show", name).stdout, verdict) for name, verdict in left(found)]
        rows[file] = {**counts(found), "survivors": shown, "source": sources[file]}
    rmtree(place)
    return rows


def settings(files: Sequence[str], place: Path) -> str:
    """What mutmut reads: the files, their tests, and everything at the top of the copy that tests may open."""
    others = sorted({path.name for path in place.iterdir()} - {"gistgate", "mutants", ".git", "mutmut.log"})
    lists = {"files": files, "others": others, "tests": TESTS[folder_of(files[0])]}
    return SETTINGS.format(**{name: "\n    ".join(lines) for name, lines in lists.items()})


def mutmut(place: Path, *arguments: str, **streams: Any) -> subprocess.CompletedProcess[str]:
    """Run mutmut in a copy, which must not find the project's own sources."""
    variables = {name: value for name, value in environment(place).items() if name != "PYTHONPATH"}
    streams = streams or {"capture_output": True}
    return subprocess.run([sys.executable, "-m", "mutmut", *arguments], cwd=place, env=variables, text=True, **streams)


def read_verdicts(path: Path) -> dict[str, str | None]:
    """The verdict on every mutant by name; None for one that was not judged."""
    codes = read_json(path)["exit_code_by_key"] if path.exists() else {"none": None}
    return {name: VERDICTS.get(code, "killed") for name, code in codes.items()}


def left(verdicts: Mapping[str, str | None]) -> Iterator[tuple[str, str]]:
    """Mutants that no test noticed."""
    for name, verdict in verdicts.items():
        if verdict in ("survived", "untested"):
            yield name, verdict


def counts(verdicts: Mapping[str, str | None]) -> dict[str, int]:
    """How many mutants there are, and how many have each verdict."""
    found = Counter(verdicts.values())
    return {"mutants": len(verdicts), **{name: found[name] for name in ("killed", "timeout", "survived", "untested")}}


def survivor(file: str, shown: str, verdict: str) -> dict[str, str]:
    """Where a mutant lies and what it changes, from mutmut's description: its name, and a diff of the function."""
    title, *diff = shown.splitlines()
    before, after = ([line[1:].strip() for line in diff if line[:1] == sign and line[:3] != 3 * sign] for sign in "-+")
    function = title.partition("__mutmut_")[0].replace("ǁ", ".").rpartition(".")[2].removeprefix("x_")
    change = f"{' '.join(before)} -> {' '.join(after)}"
    return {"at": f"{file}:{line_of(ROOT / file, function, before)}", "change": change, "verdict": verdict}


def line_of(path: Path, function: str, before: Sequence[str]) -> int:
    """The first line of a function that reads so; the function's own where mutmut writes it otherwise."""
    source = path.read_text(encoding="utf-8")
    lines = [line.strip() for line in source.splitlines()]
    found = [node for node in ast.walk(ast.parse(source)) if getattr(node, "name", None) == function]
    for node in found:
        for number in range(node.lineno, node.end_lineno + 1):
            if [lines[number - 1]] == before[:1]:
                return number
    return found[0].lineno


def recorded() -> dict[str, Any]:
    """The files whose mutants were judged as they are now."""
    rows = read_json(OUTPUT)["files"] if OUTPUT.exists() else {}
    return {file: row for file, row in rows.items() if row["source"] == fingerprint(ROOT / file)}


def record(file: str, row: Mapping[str, Any]) -> None:
    """Add a judged file; the result names the code of all files in it."""
    rows = {**recorded(), file: row}
    total = Counter[str]()
    for one in rows.values():
        total.update({key: count for key, count in one.items() if isinstance(count, int)})
    modules = [name.removesuffix(".py").replace("/", ".") for name in rows]
    unchecked = [name for name in core() if name not in rows]
    content = {"tool": f"mutmut {version('mutmut')}", "files": rows, "total": dict(total), "unchecked": unchecked}
    write_result(OUTPUT, content, "benchmarks.mutants", *modules)
    print(f"{file}: {', '.join(f'{row[key]} {key}' for key in total)}", flush=True)


if __name__ == "__main__":
    run(main)
