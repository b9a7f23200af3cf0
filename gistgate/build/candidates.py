"""Everything that `gistgate tune` may choose from: plain decoding, strict decoding, and what certificates permit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from gistgate.build.asking import Asking
from gistgate.build.choose import MODEL, NONE, STRICT, Choice, certified_point
from gistgate.build.decoder import assemble, binding_of, load_gate
from gistgate.build.drafters import STOPPING, Sources, make_drafter
from gistgate.build.models import Target, load_draft
from gistgate.build.wishes import Wishes
from gistgate.certificates.certificate import OperatingPoint, Proof
from gistgate.certificates.holds import check_parts, load_proof
from gistgate.decoding.decoder import Decoder
from gistgate.drafters.base import Drafter
from gistgate.errors import UserError
from gistgate.observing.tuning import PLAIN, Candidate

BLOCKS = (2, 4, 8)
"""K of the strict candidates."""


class Workshop:
    """The parts that all candidates are made of, loaded once."""

    def __init__(self, target: Target, wishes: Wishes, asking: Asking) -> None:
        self.target, self.wishes, self.asking = target, wishes, asking
        model, tokenizer = target.model, target.tokenizer
        self.draft: PreTrainedModel | None = None
        if wishes.draft is not None:
            self.draft = load_draft(wishes.draft, model, tokenizer, **wishes.lighter)
        self.gate = load_gate(wishes.gate, model, self.draft, tokenizer)
        self.sources = Sources(model, tokenizer, self.draft, wishes.datastore, wishes.corpus, wishes.stop_drafting)
        self.refused: list[str] = []
        """Why certificates could not take part, a sentence for each."""

    def candidates(self, certificates: Sequence[str]) -> list[Candidate]:
        """Plain decoding, what the certificates permit, and strict decoding with every K and the drafters of both."""
        certified = [one for place in certificates for one in self.certified(place)]
        own = [MODEL, "lookup"] if self.draft is not None else ["lookup"]
        strict = [
            Candidate(f"strict {drafter} K={block}", self.decoder(Choice(STRICT, {}, block, drafter)))
            for drafter in dict.fromkeys([*own, *(one.proof.drafter for one in certified if one.proof)])
            for block in BLOCKS
        ]
        plain = Candidate(PLAIN, self.decoder(Choice(STRICT, {}, 0, NONE)))
        return [plain, *strict, *certified]

    def drafter(self, name: str) -> Drafter | None:
        """A drafter; only those that can end their drafts are told when to."""
        told = self.sources if name in STOPPING else replace(self.sources, stopping=None)
        return make_drafter(name, told)

    def decoder(self, choice: Choice) -> Decoder:
        """The decoder of a choice; a strict one asks no gate."""
        gate: Any = None if choice.rule == STRICT else self.gate
        drafter = self.drafter(choice.drafter)
        return assemble(self.target.model, self.target.tokenizer, choice, drafter, gate, engine=self.wishes.engine)

    def certified(self, place: str) -> Iterator[Candidate]:
        """The settings of one certificate that keep the budget and hold for these parts."""
        proof = load_proof(place)
        try:
            self.check(proof)
        except UserError as error:
            self.refused.append(f"{place}: {error}")
            return
        for point in self.permitted(proof, place):
            settings = ", ".join(f"{name} {value}" for name, value in point.settings.items())
            name = f"{proof.rule} {settings}, {proof.drafter} K={proof.block}"
            choice = Choice(proof.rule, dict(point.settings), proof.block, proof.drafter)
            yield Candidate(name, self.decoder(choice), proof, point)

    def check(self, proof: Proof) -> None:
        """Refuse a certificate of other parts or other requests.

        Raises:
            UserError: what differs.
        """
        gate = self.gate if proof.scope.get("gate") is not None else None
        drafting = binding_of(self.drafter(proof.drafter))
        used: dict[str, Any] = {"engine": self.wishes.engine, "guards": self.wishes.guards, "drafting": drafting}
        used["settings"] = proof.fixed
        data: Path | None = self.sources.behind(proof.drafter)
        check_parts(proof, gate, self.target.model, self.draft, self.target.tokenizer, data=data, **used)
        self.asking.check(proof, self.target)

    def permitted(self, proof: Proof, place: str) -> list[OperatingPoint]:
        """The certified settings within the budget, each once; beside the gate only the task's own score counts."""
        asked = self.wishes if str(place) == str(self.wishes.gate) else replace(self.wishes, certificate=place)
        most = certified_point(asked, proof)
        if most is None:
            self.refused.append(f"{place}: nothing in it is certified for the budget.")
            return []
        within = [point for point in proof.certified if point.budget <= most.budget + 1e-9]
        return list({repr(point.settings): point for point in within}.values())
