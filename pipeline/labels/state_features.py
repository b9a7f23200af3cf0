"""The features of labelled mismatches from states that a serving engine has computed.

They are those of `pipeline.labels.features`. The text in front of a mismatch and the tokens of its block are read as
one text, and the rows from the one in front of the mismatch on make the block. Logits are computed from the states.

Axis letters: B rows, K drafted tokens, V vocabulary, D width, L layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gistgate.block import Block
from gistgate.errors import UserError
from gistgate.forward.logits import last_logits
from gistgate.gates.features import extract, layers_needed
from pipeline.labels.features import divergence
from pipeline.labels.output_layer import OutputLayer
from pipeline.labels.replay import batches
from pipeline.labels.tables import Table, concatenated
from pipeline.labels.texts import Texts

States = Callable[[Sequence[Sequence[int]]], list[Tensor]]
"""Texts -> the states after each of their tokens [n, L, D], by the layers that were asked for."""


def numbers_of(names: Sequence[str], last: int) -> list[int]:
    """Numbers of the layers, counted from 1, that features read; the last one, which logits need, is the last of them.

    Raises:
        UserError: a layer that the target does not have.
    """
    found = {last}
    for layer in layers_needed(names) - {"post", "pre"}:
        number = int(layer.removeprefix("layer:")) + 1
        if number > last:
            raise UserError(f"There is no hidden state '{layer}'; the target has {last} layers. Change train.features.")
        found.add(number)
    return sorted(found)


class StateFeatures:
    """Reads the features of labelled mismatches as `FeatureReader` does, from the states of an engine."""

    def __init__(
        self,
        states: States,
        output: OutputLayer,
        draft: PreTrainedModel | None,
        prompts: Sequence[dict[str, Any]],
        names: Sequence[str],
        numbers: Sequence[int],
        vocabulary: int,
    ) -> None:
        """`numbers` are the layers of `states`; `vocabulary` is the number of ids that count."""
        self.states, self.output, self.draft, self.prompts = states, output, draft, prompts
        self.names, self.numbers, self.vocabulary = tuple(names), list(numbers), vocabulary

    @torch.no_grad()
    def read(self, table: Table, texts: Texts, batch_size: int, **_request: Any) -> Table:
        """The columns `kl` and `same_target` of the schema FEATURES and all features, for every row of `table`."""
        parts = []
        for part in batches(table, batch_size):
            block = self.block(part, texts)
            first = torch.zeros(len(block.draft_ids), dtype=torch.long)
            columns = {name: values[:, 0].float() for name, values in extract(block, self.names).items()}
            columns["kl"] = divergence(block, torch.arange(len(first)), first)
            columns["same_target"] = (block.top_ids[:, 0] == part["target_id"]).to(torch.int8)
            parts.append(columns)
        return concatenated(parts)

    def block(self, part: Table, texts: Texts) -> Block:
        """The blocks that begin with the mismatches of `part`."""
        x_BK = torch.cat([part["draft_id"][:, None], part["behind"].long()], dim=1)
        valid_BK = x_BK >= 0
        fronts = self.fronts(part, texts)
        whole = [
            [*front, *row[: int(num)]] for front, row, num in zip(fronts, x_BK.tolist(), valid_BK.sum(-1), strict=True)
        ]
        rows = [states[len(front) - 1 :] for front, states in zip(fronts, self.states(whole), strict=True)]
        states_BRLD = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        missing = x_BK.shape[1] + 1 - states_BRLD.shape[1]
        states_BRLD = torch.nn.functional.pad(states_BRLD, (0, 0, 0, 0, 0, missing))
        hidden = {f"layer:{number - 1}": states_BRLD[:, :, at] for at, number in enumerate(self.numbers)}
        hidden["pre"] = hidden[f"layer:{self.numbers[-1] - 1}"]
        hidden["post"] = self.output.post(hidden["pre"])
        logits = self.output.logits(hidden["post"])[..., : self.vocabulary]
        return Block(
            x_BK.clamp_min(0), valid_BK, logits, q=self.draft_probs(fronts, whole, x_BK.shape[1]), hidden=hidden
        )

    def fronts(self, part: Table, texts: Texts) -> list[list[int]]:
        """The text in front of every mismatch, prompt included."""
        columns = (part["problem"].tolist(), part["policy"].tolist(), part["position"].tolist())
        return [
            [*self.prompts[problem]["ids"], *texts[problem, policy].ids[:position]]
            for problem, policy, position in zip(*columns, strict=True)
        ]

    def draft_probs(self, fronts: Sequence[list[int]], whole: Sequence[list[int]], num: int) -> Tensor | None:
        """q of every place of the blocks [B, K, V]; None without a draft model."""
        if self.draft is None:
            return None
        found = torch.zeros(len(whole), num, self.vocabulary)
        for row, (front, text) in enumerate(zip(fronts, whole, strict=True)):
            keep = len(text) - len(front)
            z = last_logits(self.draft, keep, input_ids=torch.tensor([text[:-1]], device=self.draft.device))[0]
            found[row, :keep] = z[..., : self.vocabulary].softmax(-1).cpu()
        return found
