"""What a user may say about decoding and its prompts, in objects that travel from a command line to the builder."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from gistgate.core.utils import UserError

if TYPE_CHECKING:
    from gistgate.core.certificate import Certificate
    from gistgate.models.loading import Target

AUTO = "auto"  # in place of a number of rows: measure up to which batch size speculation pays
MEASURED_BY = (
    "speculate_up_to=auto (--speculate-up-to) is measured by `gistgate generate` and the lm-eval model alone. Give a "
    "number of rows, or leave it away."
)


@dataclass(frozen=True)
class DecodeOptions:
    """The parts and options of a decoder; None and empty where the user says nothing."""

    draft: Any = None  # the draft model: hub id, folder or loaded model
    draft_revision: str = "main"  # revision of the draft model on the hub
    draft_gguf: str | None = None  # GGUF file in the folder or hub repository that `draft` names
    quantise_draft: str | None = None  # bits of the draft model's weights: "int8", "int4" or "none"
    stop_drafting: str | None = None  # file of a policy that ends drafts, or the confidence below which they end
    draft_vocabulary: str | None = None  # file of the token ids that the draft model may propose
    drafter: str | None = None  # drafter id; "none" is plain decoding
    datastore: str | None = None  # folder of a datastore, for the drafters that read one
    corpus: str | None = None  # text file with one training text per line, for the drafter "corpus"
    gate: Any = None  # a trained gate: folder or loaded gate
    rule: str | None = None  # rule id or preset
    settings: dict[str, Any] = field(default_factory=dict)  # settings of the rule by name
    block: int | None = None  # K, drafted tokens per round; 0 is plain decoding
    budget: float | None = None  # loss that the certificate has to keep, as a share of prompts (0.03 is 3 points)
    confidence: float | None = None  # least confidence that the certificate has to have
    certificate: str | None = None  # certificate.json or its folder: decoding runs as it says, and nothing contradicts
    segments: Any = None  # segment probes, a folder or loaded ones; then rule, settings and K are those of segments
    guards: Sequence[str] = ()  # ids of guards; "domain" is read from the gate's folder
    engine: str = "eager"  # engine id
    speculate_up_to: int | str | None = None  # rows above which a batch is decoded plainly; "auto": the caller measures

    def __post_init__(self) -> None:
        if self.draft_gguf is not None and self.draft is None:
            raise UserError(f"{self.draft_gguf} (draft_gguf, --draft-gguf) is of a draft, and no draft is named. Name it as draft= (--draft).")

    @property
    def lighter(self) -> dict[str, Any]:
        """Which draft model is loaded, and how it is made lighter: arguments of `load_draft`."""
        said = (self.draft_revision, self.draft_gguf, self.quantise_draft, self.draft_vocabulary)
        return dict(zip(("revision", "gguf", "quantised", "vocabulary"), said, strict=True))

    @property
    def most_rows(self) -> int | None:
        """`speculate_up_to` as a number; None where nothing or "auto" is said."""
        asked = self.speculate_up_to
        if asked is None or asked == AUTO:
            return None
        if not str(asked).isdecimal():
            raise UserError(f"speculate_up_to is '{asked}'. Give a number of rows (0 never speculates) or '{AUTO}'.")
        return int(asked)


NAMES = tuple(item.name for item in fields(DecodeOptions) if item.name != "settings")
"""All options but the settings of the rule, which stand among keyword arguments under their own names."""


def parse_settings(pairs: Sequence[str]) -> dict[str, Any]:
    """Settings of a rule from texts such as `theta=0.9`; numbers and true/false become values."""
    settings: dict[str, Any] = {}
    for pair in pairs:
        name, sign, text = (part.strip() for part in pair.partition("="))
        if not sign:
            raise UserError(f"'{pair}' is no setting. Write it as name=value, for instance theta=0.9.")
        settings[name] = {"true": True, "false": False}.get(text.lower(), text)
        for kind in (float, int):  # a whole number is both, and kept as such
            with suppress(ValueError):
                settings[name] = kind(text)
    return settings


@dataclass(frozen=True)
class EncodedPrompt:
    """A prompt, with its token ids where the file of prompts holds them."""

    text: str
    ids: tuple[int, ...] | None = None


@dataclass(frozen=True)
class PromptFile:
    """The prompts of a command, and what the user says about the way they are put to a target."""

    prompts: Sequence[EncodedPrompt] = ()
    chat: bool = False
    system: str | None = None
    temperature: float = 0.0

    def encode(self, target: Target) -> list[list[int]]:
        """The ids of all prompts: those of the file, else encoded and wrapped as the user says."""
        return [
            target.encode(one.text, self.chat, self.system)
            if one.ids is None or (self.chat and not is_rendered(target, one.text))
            else list(one.ids)
            for one in self.prompts
        ]

    def check(self, certificate: Certificate, target: Target | None = None) -> None:
        """Refuse requests unlike the certified ones; those that hold their ids once their target is at hand."""
        from gistgate.core.certificate import check_request

        chat, system = self.chat, self.system
        if self.prompts and all(prompt.ids is not None for prompt in self.prompts):
            if target is None:
                return
            known = (certificate.scope.get("prompting") or {}).get("system")
            is_chat = all(is_rendered(target, prompt.text, known, begins=True) for prompt in self.prompts)
            chat, system = chat or is_chat, known if is_chat else system
        check_request(certificate, temperature=self.temperature, chat=chat, system=system)


def is_rendered(target: Target, text: str, system: str | None = None, begins: bool = False) -> bool:
    """Whether a text holds what the chat template puts behind a user's turn.

    With `begins` it also has to begin as the template does with this system text. A template that writes the date
    begins otherwise on another day.
    """
    if target.tokenizer.chat_template is None:
        return False
    mark = "GISTGATE"  # stands for the user's text: what the template puts around it counts
    before, _, behind = target.rendered(mark, system).partition(mark)
    return bool(behind) and behind in text and (not begins or text.startswith(before))
