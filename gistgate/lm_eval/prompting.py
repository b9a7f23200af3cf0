"""How the harness made the prompts of its requests, which hold the text alone, while a certificate
asks how they were made.

lm-eval makes prompts before it asks a model anything, and hands over neither the task nor how they
were made.
"""

from collections.abc import Sequence
from typing import Any

from lm_eval.api.task import ConfigurableTask

WAYS: dict[int, dict[str, Any]] = {}  # how a prompt was made, by the hash of its text
MAKE = ConfigurableTask.fewshot_context  # lm-eval's own method


def remembering(task: Any, doc: Any, num_fewshot: int, **how: Any) -> Any:
    """The harness's method that makes a prompt, and remembers how."""
    text = MAKE(task, doc, num_fewshot, **how)
    is_chat = bool(how.get("apply_chat_template"))
    number: int | str = num_fewshot
    if is_chat and num_fewshot and not how.get("fewshot_as_multiturn"):
        number = f"{num_fewshot} in one turn"  # which no certificate has
    WAYS[hash(str(text))] = {
        "chat": is_chat,
        "system": how.get("system_instruction"),
        "num_fewshot": number,
    }
    return text


def ways_of(prompts: Sequence[str]) -> list[dict[str, Any]]:
    """How these prompts were made, each way once."""
    ways = {tuple(WAYS.get(hash(prompt), {}).items()) for prompt in prompts}
    return [dict(way) for way in ways]
