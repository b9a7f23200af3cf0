"""How the prompts of a command are put to a target: encoded and wrapped, or with the ids that a file holds for them.

Files of the pipeline hold a prompt as it was put, chat template included, and its ids. Such a prompt is taken as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gistgate.errors import UserError

if TYPE_CHECKING:
    from gistgate.build.models import Target
    from gistgate.certificates.certificate import Proof

MARK = "GISTGATE"
"""Stands for a user's text where only what the template puts around it counts."""


@dataclass(frozen=True)
class Asked:
    """One prompt."""

    text: str
    ids: tuple[int, ...] | None = None
    """Its token ids, where the file holds them; the text is then what they stand for."""


@dataclass(frozen=True)
class Asking:
    """Prompts, and what the user says about the way they are put."""

    prompts: Sequence[Asked] = ()
    chat: bool = False
    system: str | None = None
    temperature: float = 0.0

    def encode(self, target: Target) -> list[list[int]]:
        """The ids of all prompts.

        Raises:
            UserError: the ids of a file are another tokenizer's, or the tokenizer has no chat template.
        """
        return [self._encoded(target, prompt) for prompt in self.prompts]

    def check(self, proof: Proof, target: Target | None = None) -> None:
        """Refuse requests unlike the certified ones; those that hold their ids once their target is at hand.

        Raises:
            UserError: what differs.
        """
        from gistgate.certificates.holds import check_request

        if target is not None or not self._is_written:
            check_request(proof, temperature=self.temperature, **self._prompting(proof, target))

    @property
    def _is_written(self) -> bool:
        """Whether all prompts hold their ids."""
        return bool(self.prompts) and all(prompt.ids is not None for prompt in self.prompts)

    def _encoded(self, target: Target, prompt: Asked) -> list[int]:
        if prompt.ids is None or (self.chat and not is_rendered(target, prompt.text)):
            return target.encode(prompt.text, self.chat, self.system)
        check_ids(target.tokenizer, prompt)
        return list(prompt.ids)

    def _prompting(self, proof: Proof, target: Target | None) -> dict[str, Any]:
        """Chat template and system text: those of the certificate where the prompts were written out with them."""
        system = (proof.scope.get("prompting") or {}).get("system")
        if target is None or not self._is_written:
            return {"chat": self.chat, "system": self.system}
        is_chat = all(is_rendered(target, prompt.text, system, begins=True) for prompt in self.prompts)
        return {"chat": self.chat or is_chat, "system": system if is_chat else self.system}


def is_rendered(target: Target, text: str, system: str | None = None, begins: bool = False) -> bool:
    """Whether a text holds what the chat template puts behind a user's turn.

    With `begins` it also has to begin as the template does with this system text. A template that writes the date
    begins otherwise on another day.
    """
    if target.tokenizer.chat_template is None:
        return False
    before, _, behind = target.rendered(MARK, system).partition(MARK)
    return bool(behind) and behind in text and (not begins or text.startswith(before))


def check_ids(tokenizer: Any, prompt: Asked) -> None:
    """Refuse ids that do not stand for their text.

    Raises:
        UserError: they are another tokenizer's.
    """
    ids = list(prompt.ids or ())
    ways = (tokenizer(prompt.text, add_special_tokens=special).input_ids for special in (True, False))
    if ids in ways or tokenizer.decode(ids, clean_up_tokenization_spaces=False).endswith(prompt.text):
        return
    raise UserError(
        "The ids in the file of prompts are another tokenizer's. Take a file that was written for this target, or "
        "leave `ids` out of it."
    )
