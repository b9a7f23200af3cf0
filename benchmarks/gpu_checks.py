"""What `make gpu` asks of a GPU, one question per function; each returns figures, or raises with what is wrong.

    python -m benchmarks.gpu_checks ids FILE

Without a GPU the same questions are asked of the CPU, which shows that they can be asked, not what a GPU would say.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import torch

from benchmarks.scripted import random_gate, scripted, scripts
from gistgate.decoding.decoder import Decoder
from gistgate.decoding.engines import drafting, program
from gistgate.drafters.model import ModelDrafter
from gistgate.errors import UserError
from gistgate.files import read_json, write_json
from gistgate.rules import make_rule
from pipeline.common.entry import run

PROMPT, ANSWER, VOCABULARY = 24, 40, 2048
"""Tokens of a prompt and of an answer, and the vocabulary, of the small models that compare engines."""
COMPILED = {"cuda": 5, "cpu": 1}
"""Shapes that get programs, which take up to half a minute each to build."""
JUDGES: dict[str, dict[str, Any]] = {
    "exact": {},
    "prob": {"r": 1e-9},
    "prob-ratio": {"r": 1e-9},
    "fly": {"theta": 0.5, "window": 2},
    "ensemble": {"w": 0.5},
    "autojudge": {"risk": 0.5},
}
"""Rules at settings that accept some draft tokens of the scripted pair loosely, or all of them."""
OURS = ("plain", "strict", "closed-gate")
"""How the contenders of `benchmarks.shapes` begin that this library decodes."""


def device() -> str:
    """The device that is asked."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def ids() -> dict[str, Any]:
    """Every rule on both engines, block lengths and batch sizes: ids equal those of the eager engine on the CPU."""
    torch.backends.cuda.matmul.allow_tf32 = False
    text, draft_text = scripts(PROMPT + ANSWER + 64, VOCABULARY, 0.2, seed=0)
    size = "20M" if device() == "cuda" else "1M"
    models = {
        place: [scripted(size, script, VOCABULARY, torch.float32, "cpu").to(place) for script in (text, draft_text)]
        for place in {"cpu", device()}
    }
    for role in range(2):  # the same random weights on both devices
        models[device()][role].load_state_dict(models["cpu"][role].state_dict())
    compared, compiled, loose = 0, 0, 0
    every = len(JUDGES) * 4 // COMPILED[device()] + 1
    for number, ((name, settings), block, rows) in enumerate(product(JUDGES.items(), (2, 5), (1, 4))):
        reference = answers(models["cpu"], name, settings, block, rows, "eager", text)
        engines = ("eager", "compiled") if number % every == 0 else ("eager",)
        for engine in engines:
            with as_large(compiled % 3 == 0):
                found = answers(models[device()], name, settings, block, rows, engine, text)
            if [one.ids for one in found] != [one.ids for one in reference]:
                raise UserError(f"{name} at K = {block} with {rows} rows writes other ids on the {engine} engine.")
            compared += 1
            compiled += engine == "compiled"
            loose += sum(one.statistics.loose for one in found)
    if not loose:
        raise UserError("No rule accepted a token loosely, so the comparison says nothing about loose acceptance.")
    return {"combinations": compared, "compiled": compiled, "loose_tokens": loose}


@contextmanager
def as_large(large: bool) -> Iterator[None]:
    """Programs as large models get them: each step of a draft apart, and layers that are alike compiled once."""
    usual = drafting.MOST_LAYERS, program.HEAVY
    if large:
        drafting.MOST_LAYERS = program.HEAVY = 0
    try:
        yield
    finally:
        drafting.MOST_LAYERS, program.HEAVY = usual


def answers(
    models: list[Any], name: str, settings: dict[str, Any], block: int, rows: int, engine: str, text: Any
) -> list[Any]:
    """Greedy answers of one rule; a compiled engine that falls back is an error."""
    target, draft = models
    torch.manual_seed(0)  # the same gate every time
    gate = random_gate(target).to(target.device) if name == "autojudge" else None
    decoder = Decoder(target, ModelDrafter(draft), make_rule(name, **settings), block, gate=gate, engine=engine)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="This runs on the eager engine")
        prompt = text[:PROMPT].tolist()
        return decoder.generate([prompt] * rows, max_new_tokens=ANSWER, eos_ids=[])


def shapes() -> dict[str, Any]:
    """The benchmark of real shapes, shortened; that a contender of transformers fails is a result, of ours an error."""
    from benchmarks import shapes as benchmark

    found = benchmark.one(
        "7B/0.5B" if device() == "cuda" else "1M/1M",
        block=8, error=0.08, tokens=64, repeats=4, on_gpu=device() == "cuda",
    )  # fmt: skip
    for label, why in found["failed"].items():
        if label.startswith(OURS):
            raise UserError(f"{label} does not run: {why}")
    return found


def of_a_run(name: str) -> Callable[[], dict[str, Any]]:
    """A benchmark of a finished run, shortened; what it writes is returned."""

    def question() -> dict[str, Any]:
        if not Path("data/prompts/test.jsonl").exists():
            raise Unasked("this folder holds no finished run; `make repro` makes one")
        import importlib
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            module, sizes = importlib.import_module(f"benchmarks.{name}"), SHORT[device()][name]
            methods = {"methods": first_method()} if sizes.get("methods") == FIRST else {}
            module.main(**{**sizes, **methods}, results=Path(folder))
            return dict(read_json(next(Path(folder).glob("*.json"))))

    return question


def first_method() -> str:
    """The first method that is certified in this folder's run, a learned one before the others; empty without one."""
    from benchmarks.workload import certified_points
    from pipeline.params import read_params
    from pipeline.studies.table.params import table_params

    points = certified_points(table_params(read_params()))
    return min(points, key=lambda name: points[name].head is None, default="")


class Unasked(Exception):  # noqa: N818 (no error: there is nothing to ask)
    """A question that cannot be asked here; the message says why."""


FIRST = "first"
"""In place of methods: the first one that is certified in the run."""
SHORT: dict[str, dict[str, dict[str, Any]]] = {
    "cuda": {"speed": {"prompts": 8, "batches": "1,8"}, "limit": {"prompts": 8, "methods": FIRST}, "memory": {}},
    "cpu": {
        "speed": {"prompts": 4, "batches": "1", "methods": FIRST},
        "limit": {"prompts": 4, "calls": 2, "methods": FIRST, "engines": "eager"},
        "memory": {"batch": 1},
    },
}
"""Sizes that let each benchmark of a finished run end within about two minutes. On a processor they are a rehearsal,
and `shapes` alone builds the programs that `limit` would build."""
QUESTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "ids": ids,
    "shapes": shapes,
    **{name: of_a_run(name) for name in SHORT["cpu"]},
}
"""Question -> what answers it."""


def main(name: str, out: Path) -> None:
    """Ask one question and write the answer."""
    try:
        write_json(out, {"state": "answered", "found": QUESTIONS[name]()})
    except (Unasked, ModuleNotFoundError) as reason:
        write_json(out, {"state": "not asked", "why": str(reason)})
    except Exception as error:  # every failure is an answer here, and the other questions go on
        message = " ".join(str(error).split())[:500]
        write_json(out, {"state": "failed", "why": f"{type(error).__name__}: {message}"})


if __name__ == "__main__":
    run(main, kept=False)
