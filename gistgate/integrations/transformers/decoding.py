"""The callable that transformers runs in place of its own decoding loop."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation import GenerateDecoderOnlyOutput

from gistgate.block import Sampling
from gistgate.certificates.certificate import Proof
from gistgate.certificates.holds import refuse
from gistgate.decoding.decoder import Decoder
from gistgate.integrations.transformers.prepared import check_supported, pad_id, read_ends, read_sampling
from gistgate.request.rows import Generation


@dataclass(frozen=True)
class GatedDecoding:
    """For `model.generate(custom_generate=...)`: all parts are on the object, so none gets lost on the way."""

    decoder: Decoder
    """Decodes; its tokenizer finds stop strings, where one was given."""
    strings: tuple[str, ...]
    """Texts that end an answer."""
    report: list[Generation] | None
    """Receives what was counted; None when nobody asks."""
    is_gated: bool
    """Whether a gate was given, whose certificate holds for greedy decoding only."""
    proof: Proof | None = None
    """The certificate that was named, or that `gistgate tune` preferred: what it does not cover is refused."""

    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: GenerationConfig,
        **prepared: Any,
    ) -> Tensor | GenerateDecoderOnlyOutput:
        """Continue the rows of `input_ids [B, T]`; returns [B, T + new], right-padded."""
        check_supported(model, generation_config, prepared)
        sampling = read_sampling(bool(generation_config.do_sample), logits_processor)
        ends = read_ends(stopping_criteria)
        strings, decoder = (*self.strings, *ends.strings), self.decoder
        if decoder.tokenizer is None:
            decoder = decoder.having(tokenizer=ends.tokenizer)
        if self.proof is not None:
            refuse(self.proof.mismatch(temperature=sampling.temperature))
        self.warn(sampling)
        answers = decoder.generate(
            prompts_of(input_ids, prepared.get("attention_mask")),
            max_new_tokens=ends.max_length - input_ids.shape[1],
            eos_ids=ends.eos_ids,
            stops=strings,
            sampling=sampling,
            seeds=None if sampling.greedy else fresh_seeds(input_ids.shape[0]),
        )
        if self.report is not None:
            self.report.extend(answers)
        ids = torch.cat([input_ids, padded(answers, pad_id(generation_config, ends.eos_ids)).to(input_ids)], dim=1)
        return GenerateDecoderOnlyOutput(sequences=ids) if generation_config.return_dict_in_generate else ids

    def warn(self, sampling: Sampling) -> None:
        """Say that no certificate covers sampled tokens, where a gate decides about them."""
        if self.is_gated and self.decoder.rule.knob is not None and not sampling.greedy:
            warnings.warn(
                f"No certificate covers this: tokens are sampled at temperature {sampling.temperature:g}, but greedy "
                "decoding was certified.",
                stacklevel=2,
            )


def prompts_of(input_ids: Tensor, attention_mask: Tensor | None) -> list[list[int]]:
    """The rows without their padding."""
    if attention_mask is None:
        return [list(row) for row in input_ids.tolist()]
    return [row[keep].tolist() for row, keep in zip(input_ids, attention_mask.bool(), strict=True)]


def fresh_seeds(num: int) -> list[int]:
    """One seed per row, drawn from torch's own generator, so that `torch.manual_seed` repeats a run."""
    return [int(seed) for seed in torch.randint(2**62, (num,)).tolist()]


def padded(answers: list[Generation], pad: int) -> Tensor:
    """The new ids [B, longest answer]."""
    longest = max(len(answer.ids) for answer in answers)
    rows = [answer.ids + [pad] * (longest - len(answer.ids)) for answer in answers]
    return torch.tensor(rows, dtype=torch.long)
