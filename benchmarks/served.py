"""Whether a vLLM server writes what this library's decoder writes: ids where it is strict, scores where a gate is open.

    python -m benchmarks.served --python .venv-vllm/bin/python [--number 200] [--users 8] [--pair NAME]

In the folder of a finished run. One server after another answers the first test prompts: vLLM with a draft and without
the plug-in, twice; with the plug-in, which is told to be strict; with every gate, which judges and accepts nothing; and
every certified method at its setting. Each method also decodes the same prompts in this process. Two runs of the server
without the plug-in say how much its answers differ by themselves, since the rows of a batch come together otherwise
every time. An interrupted comparison does not start those servers again that have answered.
"""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.answers import Answer, Score, asked, compared, counters, figures
from benchmarks.bench import RESULTS, save
from benchmarks.servers import server_of, serving
from benchmarks.workload import Workload
from gistgate.errors import UserError
from gistgate.files import fingerprint, read_json, write_json
from gistgate.gates.gate import Gate
from gistgate.integrations.vllm.policy import SERVED_RULES
from gistgate.rules import RULES
from pipeline.common.code import made_by
from pipeline.common.decoders import make_decoder, run_split
from pipeline.common.entry import run
from pipeline.common.gates import gate_folder
from pipeline.common.operating_point import Operating
from pipeline.common.paths import SCRATCH
from pipeline.pairs.source import read_pair
from pipeline.tasks.loading import load_task


def main(
    python: str = sys.executable,
    number: int = 200,
    users: int = 8,
    pair: str = "",
    rules: str = "",
    options: str = "",
    results: Path = RESULTS,
) -> None:
    """Compare every method.

    Args:
        python: interpreter of an environment with vLLM and this package.
        number: test prompts.
        users: requests that a server has at once.
        pair: the pair as a server holds it, where the run's draft is quantised; default: the run's own.
        rules: methods at explicit settings, as JSON, which stand in for the certified ones; so a run can be compared
            before its calibration. A rule without a gate need not be a method of the run.
        options: further options of vLLM's servers, with spaces between them.
        results: folder of the result.
    """
    settings = settings_of(rules)
    workload = Workload.load(number, pair=pair or None)
    block, score = workload.params.decoding.block, scoring(workload)
    plain = server_of(read_pair(workload.pair.name), block, python, options.split())

    compared_points = points(workload, settings)
    asked_for = {name: rule_of(point) for name, point in compared_points.items()}
    known = (made_by("benchmarks.served"), workload.identity(compared_points.values()), asked_for)
    place = SCRATCH / f"served-{fingerprint(workload.ids, repr(plain), users, *known)}"

    def ask(name: str, value: dict[str, Any] | None) -> tuple[list[Answer], dict[str, float]]:
        if not (kept := place / f"{name}.json").exists():
            SCRATCH.mkdir(exist_ok=True)
            with serving(replace(plain, gistgate=value), SCRATCH / f"server-{name}.log") as address:
                done = asked(address, workload.prompts, users, score)
                counted = counters(address) if value and "rule" in value else {}
            write_json(kept, {"answers": [asdict(one) for one in done], "counted": counted})
        read = read_json(kept)
        return [Answer(**one) for one in read["answers"]], read["counted"]

    here = {name: decoded(workload, point) for name, point in compared_points.items()}  # refusals come before servers
    first, (again, _), (strict, _) = ask("plain", None), ask("again", None), ask("strict", {"strict": True})
    found: dict[str, Any] = {"again": compared(again, first[0]), "strict": compared(strict, first[0])}
    for name, point in compared_points.items():
        if point.head:
            shut, _ = ask(f"{name}-closed", rule_of(closed(point)))
            found[f"{name}, closed"] = compared(shut, first[0])
        served, counted = ask(name, rule_of(point))
        own = here[name]
        found[name] = {**compared(served, own[0]), "served": figures(served, counted), "own": figures(*own)}
        print(f"{name}: {found[name]['equal']} of {number} answers have equal ids", flush=True)
    said = {"pair": workload.pair.name, "block": block, "users": users, "dtype": plain.dtype, "n": number}
    save("served", {**said, "methods": found}, results)
    shutil.rmtree(place, ignore_errors=True)  # a later run asks anew


def settings_of(rules: str) -> dict[str, dict[str, Any]]:
    """Settings by method.

    Raises:
        UserError: this is no JSON object.
    """
    try:
        found = json.loads(rules or "{}")
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise UserError(
            f'--rules {rules} is no JSON object. Write methods with settings, such as {{"fly": {{"theta": 1}}}}.'
        )
    return found


def points(workload: Workload, rules: dict[str, dict[str, Any]]) -> dict[str, Operating]:
    """The settings that are compared, by method."""
    if not rules:
        servable = {*SERVED_RULES} - {"ensemble"}  # its greedy form needs vLLM's second model runner, which wants a GPU
        found = {name: one for name, one in workload.points.items() if one.rule in servable}
        return {name: one for name, one in found.items() if one.head is None or is_shown(one.head)}
    block, methods = workload.params.decoding.block, workload.params.methods
    heads = {name: methods[name].head for name in rules if name in methods}
    return {
        name: Operating(name, name, "model", block, settings, head=heads.get(name), certified=False)
        for name, settings in rules.items()
    }


def is_shown(head: str) -> bool:
    """Whether vLLM shows what a gate reads: the states behind the final norm, and no draft probabilities."""
    gate = Gate.load(gate_folder(head))
    return not gate.wants_q and gate.layers <= {"post"}


def closed(point: Operating) -> Operating:
    """A gate at a setting at which it is asked and accepts nothing."""
    rule = RULES[point.rule]
    return replace(point, settings={**point.settings, rule.knob: 0.0 if rule.looser == "up" else 1.0})


def rule_of(point: Operating) -> dict[str, Any]:
    """A method's setting as the plug-in reads it."""
    gate = {"gate": str(gate_folder(point.head))} if point.head else {}
    return {"rule": point.rule, "settings": dict(point.settings), **gate}


def scoring(workload: Workload) -> Score:
    """The run's own metric."""
    task = load_task(workload.params)
    return lambda prompt, ids: task.score(prompt["doc"], task.text(workload.pair.tokenizer, ids))


def decoded(workload: Workload, point: Operating) -> tuple[list[Answer], dict[str, float]]:
    """The answers of this process and its counts, which leave out the forward that reads a prompt, as vLLM's do."""
    task, params = load_task(workload.params), workload.params
    # A server compares a gate with the target alone, since a gate without the feature `draft` reads nothing else.
    gate = (
        Gate.load(gate_folder(point.head), workload.pair.target, None, workload.pair.tokenizer) if point.head else None
    )
    decoder = make_decoder(workload.pair, point.as_method(), point.settings, point.block, gate=gate)
    done = run_split(decoder, task, workload.pair, workload.prompts, params, point.method)
    blocks = sum(one.statistics.forwards for one in done) - len(done)
    loose = sum(one.statistics.loose for one in done)
    return [Answer(one.ids, one.score, one.cut) for one in done], {"blocks": blocks, "loose": loose}


if __name__ == "__main__":
    run(main)
