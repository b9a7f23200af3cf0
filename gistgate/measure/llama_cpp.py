"""llama.cpp as a contender of a race (package `xllamacpp`): plain decoding of a GGUF file in a
process of its own, where its threads sleep between two requests.
"""

import json
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from gistgate.core.utils import UserError
from gistgate.measure.speed import Answers, Contender, Prompts

LLAMA_CPP = "llama_cpp"

_server: Any = None


def contender(
    file: Path, tokenizer: Any, request: dict[str, Any], slots: int, threads: int
) -> Contender:
    """Plain decoding by llama.cpp, one row at a time, with room for `slots` tokens.

    Raises UserError where the package or the file is missing.
    """
    try:
        import xllamacpp  # noqa: F401
    except ImportError as error:
        raise UserError("The package xllamacpp is not installed.") from error
    if not file.is_file():
        raise UserError(f"There is no file {file.name}.")
    pool = ProcessPoolExecutor(1, get_context("spawn"), begin, (str(file), slots, threads))
    ends = list(request.get("eos_ids", ()))[:1]

    def decode(prompts: Prompts) -> Answers:
        answers = []
        for ids in prompts:
            asked = (list(ids), request["max_new_tokens"], list(request.get("stops", ())))
            text, is_ended = pool.submit(answer, *asked).result()
            tokens = tokenizer.encode(text, add_special_tokens=False)
            answers.append([*tokens, *ends] if is_ended else tokens)
        return answers, None

    return Contender(LLAMA_CPP, decode, is_baseline=True)


def begin(file: str, slots: int, threads: int) -> None:
    """Start the server of this process, which has no port."""
    global _server
    import xllamacpp

    settings = xllamacpp.CommonParams()
    settings.model.path = file
    settings.n_ctx = slots
    settings.n_parallel = 1
    for processors in (settings.cpuparams, settings.cpuparams_batch):
        processors.n_threads = threads
        processors.poll = 0  # threads that wait busily slow the other contenders down
    _server = xllamacpp.Server(settings)


def answer(ids: Sequence[int], tokens: int, stops: Sequence[str]) -> tuple[str, bool]:
    """The greedy answer to a prompt, and whether it ended by itself."""
    body = {
        "prompt": ids,
        "max_tokens": tokens,
        "stop": stops,
        "temperature": 0,
        "cache_prompt": False,
    }
    response = _server.handle_completions(body)
    page = json.loads(response) if isinstance(response, str | bytes) else response
    if "choices" not in page:
        raise UserError(f"llama.cpp answered {page}.")
    choice = page["choices"][0]
    return choice["text"], choice["finish_reason"] == "stop"
