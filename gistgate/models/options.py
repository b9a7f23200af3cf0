"""What a user may say about decoding, in one object that travels from a command line to the builder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from gistgate.core.utils import UserError

if TYPE_CHECKING:
    from gistgate.core.certificate import Certificate
    from gistgate.models.loading import Target

AUTO = "auto"
"""In place of a number of rows: measure up to which batch size speculation pays."""
MEASURED_BY = (
    "speculate_up_to=auto (--speculate-up-to) is measured by `gistgate generate` and the lm-eval model alone. Give a "
    "number of rows, or leave it away."
)
"""What everybody else says about it."""


@dataclass(frozen=True)
class DecodeOptions:
    """The parts and options of a decoder; None and empty where the user says nothing."""

    draft: Any = None
    """The draft model: hub id, folder or loaded model."""
    draft_revision: str = "main"
    """Revision of the draft model on the hub."""
    draft_gguf: str | None = None
    """GGUF file in the folder or hub repository that `draft` names."""
    quantise_draft: str | None = None
    """Bits of the draft model's weights: "int8", "int4" or "none"."""
    stop_drafting: str | None = None
    """File of a policy that ends drafts, or the draft's probability of a token below which they end."""
    draft_vocabulary: str | None = None
    """File of the token ids that the draft model may propose."""
    drafter: str | None = None
    """Drafter id; "none" is plain decoding."""
    datastore: str | None = None
    """Folder of a datastore, for the drafters that read one."""
    corpus: str | None = None
    """Text file with one training text per line, for the drafter "corpus"."""
    gate: Any = None
    """A trained gate: folder or loaded gate."""
    rule: str | None = None
    """Rule id or preset."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of the rule by name."""
    block: int | None = None
    """K, drafted tokens per round; 0 is plain decoding."""
    budget: float | None = None
    """Loss against strict decoding that the certificate has to keep, as a share of prompts (0.03 is 3 points)."""
    confidence: float | None = None
    """Least confidence that the certificate has to have."""
    certificate: str | None = None
    """certificate.json or its folder. Decoding then runs as it says, and whatever contradicts it is refused."""
    segments: Any = None
    """Segment probes, a folder or loaded ones; then rule, settings and K are those of segments."""
    guards: Sequence[str] = ()
    """Ids of guards; "domain" is read from the gate's folder."""
    engine: str = "eager"
    """Engine id."""
    speculate_up_to: int | str | None = None
    """Rows above which a batch is decoded plainly; "auto" leaves it to the caller to measure them."""

    def __post_init__(self) -> None:
        if self.draft_gguf is not None and self.draft is None:
            raise UserError(
                f"The GGUF file {self.draft_gguf} (draft_gguf, --draft-gguf) lies in the folder or repository of a "
                "draft, and no draft is named. Name it as draft=<name or folder> (--draft), or leave the file away."
            )

    @property
    def lighter(self) -> dict[str, Any]:
        """Which draft model is loaded, and how it is made lighter: arguments of `gistgate.models.loading.load_draft`."""
        return {
            "revision": self.draft_revision,
            "gguf": self.draft_gguf,
            "quantised": self.quantise_draft,
            "vocabulary": self.draft_vocabulary,
        }

    @property
    def most_rows(self) -> int | None:
        """`speculate_up_to` as a number; None where nothing or "auto" is said.

        Raises:
            UserError: `speculate_up_to` is neither a number nor "auto".
        """
        asked = self.speculate_up_to
        if asked is None or asked == AUTO:
            return None
        if not str(asked).isdecimal():
            raise UserError(f"speculate_up_to is '{asked}'. Give a number of rows (0 never speculates) or '{AUTO}'.")
        return int(asked)


NAMES = tuple(item.name for item in fields(DecodeOptions) if item.name != "settings")
"""The names of all wishes but the settings, which stand among keyword arguments under their own names."""


def take_options(arguments: dict[str, Any]) -> dict[str, Any]:
    """Remove the wishes from keyword arguments and return them; settings of the rule stay."""
    return {name: arguments.pop(name) for name in NAMES if name in arguments}


# ---- How the prompts of a command are put to a target: encoded and wrapped, or with the ids that a file holds for them.


MARK = "GISTGATE"
"""Stands for a user's text where only what the template puts around it counts."""


@dataclass(frozen=True)
class EncodedPrompt:
    """One prompt."""

    text: str
    ids: tuple[int, ...] | None = None
    """Its token ids, where the file holds them; the text is then what they stand for."""


@dataclass(frozen=True)
class PromptFile:
    """Prompts, and what the user says about the way they are put."""

    prompts: Sequence[EncodedPrompt] = ()
    chat: bool = False
    system: str | None = None
    temperature: float = 0.0

    def encode(self, target: Target) -> list[list[int]]:
        """The ids of all prompts.

        Raises:
            UserError: the ids of a file are another tokenizer's, or the tokenizer has no chat template.
        """
        return [self._encoded(target, prompt) for prompt in self.prompts]

    def check(self, certificate: Certificate, target: Target | None = None) -> None:
        """Refuse requests unlike the certified ones; those that hold their ids once their target is at hand.

        Raises:
            UserError: what differs.
        """
        from gistgate.core.certificate import check_request

        if target is not None or not self._is_written:
            check_request(certificate, temperature=self.temperature, **self._prompting(certificate, target))

    @property
    def _is_written(self) -> bool:
        """Whether all prompts hold their ids."""
        return bool(self.prompts) and all(prompt.ids is not None for prompt in self.prompts)

    def _encoded(self, target: Target, prompt: EncodedPrompt) -> list[int]:
        if prompt.ids is None or (self.chat and not is_rendered(target, prompt.text)):
            return target.encode(prompt.text, self.chat, self.system)
        check_ids(target.tokenizer, prompt)
        return list(prompt.ids)

    def _prompting(self, certificate: Certificate, target: Target | None) -> dict[str, Any]:
        """Chat template and system text: those of the certificate where the prompts were written out with them."""
        system = (certificate.scope.get("prompting") or {}).get("system")
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


def check_ids(tokenizer: Any, prompt: EncodedPrompt) -> None:
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
