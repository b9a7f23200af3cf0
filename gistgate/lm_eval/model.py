"""An lm-eval model that generates through our decoder; importing this module registers it as
`gistgate`.
"""

import math
import zlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import torch
from lm_eval.api.registry import register_model
from lm_eval.api.task import ConfigurableTask
from lm_eval.models.huggingface import HFLM
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm
from transformers import PreTrainedModel

from gistgate.build import Built, build, options_from
from gistgate.core.attention import keep_freed_memory
from gistgate.core.batches import decode_all
from gistgate.core.block import Sampling
from gistgate.core.decoder import Decoder
from gistgate.core.request import Generation, Statistics, eos_ids, total
from gistgate.core.utils import UserError, replaced
from gistgate.coverage.ask import UNKNOWN, Ask, stops_of
from gistgate.coverage.covers import Coverage
from gistgate.lm_eval.prompting import remembering, ways_of
from gistgate.models.loading import stored_model, warn_generation_config
from gistgate.models.packed import check_kind
from gistgate.models.places import or_refuse, placed
from gistgate.models.tokenizers import encode, rendered, template

HARMLESS = {"attention_mask", "use_cache", "early_stopping", "return_dict_in_generate"}
"""Generation arguments of tasks that change nothing here."""
SAMPLING = {"temperature": 1.0, "top_k": 0, "top_p": 1.0}
"""Those of a task that samples, with their defaults."""
NEUTRAL = {"num_beams": 1, "repetition_penalty": 1.0, "num_return_sequences": 1}
"""Those that have to have a value that changes nothing."""
WAITING = 32
"""Prompts that the harness hands over at once for each row: a finished row is followed by the
next."""

Served = defaultdict[tuple[int, ...], list[Generation]]
"""Answers by the ids of their prompt, one for each request."""


@register_model("gistgate")
class GatedLM(HFLM):
    """HFLM with our decoder behind `_model_generate`; loglikelihoods are the target's as ever."""

    def __init__(
        self,
        pretrained: str | PreTrainedModel = "",
        decoder: Decoder | None = None,  # around the loaded model that `pretrained` is
        guards: str = "",  # their ids, joined by "+"
        seed: int = 0,  # of sampled answers; greedy ones have no use for it
        quantise: str | None = None,  # how the weights of a model that is named are kept
        **kwargs: Any,
    ) -> None:
        """Take a loaded model and a decoder around it, or names, as `--model_args` does.

        `kwargs` are the other fields of `gistgate.models.options.DecodeOptions` (draft, gate, rule,
        ...), settings of the rule (theta=0.9), and all that lm-eval's `hf` model takes. Requests
        that a named certificate does not cover are refused, and so is a gate that has nothing
        certified.
        """
        if not pretrained:
            raise UserError(
                f"--model_args names no model ({', '.join(kwargs) or 'nothing'}). Write"
                " pretrained=NAME."
            )
        options = options_from(kwargs)
        options = replace(options, guards=tuple(name for name in guards.split("+") if name))
        check_kind(quantise or "none")
        self.quantise = quantise
        self._load(pretrained, kwargs)
        if decoder is None:
            built = build(self.model, self.tokenizer, options, policy="refuse")
        else:
            built = Built(decoder, Coverage.beside(decoder.parts.gate, decoder.rule))
        self.decoder = built.decoder
        self.coverage = built.coverage
        if self.decoder.target is not self.model:
            raise UserError(
                "The decoder was made for another target. Pass the model that it decodes as"
                " `pretrained`."
            )
        if self.coverage.certificate is not None and self.coverage.certified is not None:
            ConfigurableTask.fewshot_context = remembering
        self.seed = seed
        self.rows = 0
        self.is_quiet = False
        self.prompting: list[dict[str, Any]] = []
        """How the prompts of these requests were made, each way once."""
        self.served = Served(list)

    def _load(self, pretrained: str | PreTrainedModel, kwargs: dict[str, Any]) -> None:
        """Begin as lm-eval's model does, around a loaded model or one that is named."""
        begin = super().__init__
        if isinstance(pretrained, str):
            pretrained, place = placed(pretrained, kwargs.pop("gguf_file", None))
            kwargs |= place
            or_refuse("model", pretrained, lambda: begin(pretrained=pretrained, **kwargs), **kwargs)
        else:
            begin(pretrained=pretrained, **kwargs)
        keep_freed_memory(self.model.device)
        warn_generation_config(self.model)

    def _create_model(self, pretrained: str, *arguments: Any, **options: Any) -> None:
        """The harness's own method; the weights have to be whole, finite and in safetensors, as
        everywhere else.
        """

        def load(name: str, **options: Any) -> PreTrainedModel:
            return stored_model(name, self.quantise, self.device, **options)

        with replaced(self, "AUTO_MODEL_CLASS", SimpleNamespace(from_pretrained=load)):
            super()._create_model(pretrained, *arguments, **options)

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """The harness's own method with prompts for many rows."""
        rows = self.batch_size_per_gpu  # "auto" or a number
        self.is_quiet = disable_tqdm or self.rank != 0
        self.rows = rows if isinstance(rows, int) else 0
        self.prompting = ways_of([request.args[0] for request in requests])
        with replaced(self, "batch_size_per_gpu", self.rows * WAITING or rows):
            texts: list[str] = super().generate_until(requests, disable_tqdm=disable_tqdm)
        return texts

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The harness's own method: the text of the template, which its command line may name."""
        if isinstance(chat_template, str):
            self.chat_template_args |= {"chat_template": chat_template}
        if not chat_template:
            return None
        return template(self.tokenizer, self.chat_template_args.get("chat_template"))

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """The harness's own method, which would leave away a system text that the template
        refuses.
        """
        return rendered(
            self.tokenizer, chat_history, add_generation_prompt, **self.chat_template_args
        )

    def tok_batch_encode(
        self, strings: list[str], left_truncate_len: int | None = None, **how: Any
    ) -> Any:
        """The harness's own method; prompts become ids as everywhere in GistGate."""
        rows = [torch.tensor(encode(self.tokenizer, text)) for text in strings]
        if self.add_bos_token is not None or max(map(len, rows)) > (left_truncate_len or math.inf):
            # It warns of a cut.
            return super().tok_batch_encode(strings, left_truncate_len=left_truncate_len, **how)
        masks = [torch.ones_like(row) for row in rows]
        pad = self.tokenizer.pad_token_id
        return pad_sequence(rows, True, pad, "left"), pad_sequence(masks, True, 0, "left")

    def _model_generate(
        self, context: Tensor, max_length: int, stop: list[str], **kwargs: Any
    ) -> Tensor:
        """Continue a left-padded batch `context [B, T]` and return it with its answers `[B, T +
        n]`, right-padded.
        """
        mask = kwargs.get("attention_mask")
        mask = torch.ones_like(context) if mask is None else mask
        prompts = [row[keep.bool()].tolist() for row, keep in zip(context, mask, strict=True)]
        # The harness adds the text of eos to the stops; its id does that better, and wordings may
        # contain the text.
        eos = self.tok_decode(self.eot_token_id, skip_special_tokens=False)
        request: dict[str, Any] = {
            "max_new_tokens": max_length - context.shape[1],
            "eos_ids": eos_ids(self.model, self.tokenizer),
            "stops": [text for text in stop if text and text != eos],
            "sampling": sampling(kwargs),
        }
        self._check(request["sampling"].temperature, stops_of(request["stops"], self.tokenizer))
        request |= {"batch_size": self.rows or len(prompts), "seeds": self._seeds(prompts)}
        silent = self.is_quiet or None  # None: silent where no terminal is
        with tqdm(
            total=len(prompts), desc="Answers", unit="answer", leave=False, disable=silent
        ) as bar:
            answers = decode_all(self.decoder, prompts, progress=bar.update, **request)
        for prompt, answer in zip(prompts, answers, strict=True):
            self.served[tuple(prompt)].append(answer)
        rows = [torch.tensor(answer.ids) for answer in answers]
        new_BN = pad_sequence(rows, batch_first=True, padding_value=self.tokenizer.pad_token_id)
        return torch.cat([context, new_BN.to(context)], dim=1)

    def _check(self, temperature: float, stops: list[str]) -> None:
        """Refuse requests that a named certificate does not cover; warn of those that one beside a
        gate does not.
        """
        for way in self.prompting or [{}]:
            is_chat = way.get("chat", False)
            ask = Ask(
                temperature=temperature,
                chat=is_chat,
                system=way.get("system"),
                num_fewshot=way.get("num_fewshot", UNKNOWN),
                arguments=self.chat_template_args if is_chat else {},
                stops=stops,
            )
            self.coverage.meet(ask)

    def _seeds(self, prompts: Sequence[Sequence[int]]) -> list[int]:
        """Seeds that follow the prompts, not their places in a batch; repeated prompts get
        others.
        """
        counts = Counter[tuple[int, ...]]()
        seeds = []
        for prompt in prompts:
            key = tuple(prompt)
            repeats = len(self.served.get(key, [])) + counts[key]
            seeds.append(zlib.crc32(repr((self.seed, repeats, list(prompt))).encode()))
            counts[key] += 1
        return seeds

    @property
    def statistics(self) -> Statistics:
        """The sum over all answers."""
        return total([answer.statistics for answers in self.served.values() for answer in answers])

    def get_model_info(self) -> dict[str, Any]:
        """What lm-eval stores beside its results: HFLM's facts, the rule and what was counted."""
        rule: Any = self.decoder.rule
        statistics = self.statistics
        ours = {
            "rule": rule.id,
            "settings": {field.name: getattr(rule, field.name) for field in fields(rule)},
            "block": self.decoder.block,
            "speculate_up_to": self.decoder.speculate_up_to,
            "mean_accepted_length": statistics.mean_accepted_length,
            "loose_per_100": statistics.loose_per_100,
            "statistics": statistics.as_dict(),
        }
        return {**super().get_model_info(), "gistgate": ours}


def sampling(kwargs: dict[str, Any]) -> Sampling:
    """The task's wishes as our settings."""
    for name, value in kwargs.items():
        is_known = name == "do_sample" or name in HARMLESS or name in SAMPLING
        if not is_known and value is not None and NEUTRAL.get(name) != value:
            raise UserError(
                f"The task asks for {name}={value}, which this decoder cannot do. Remove it from"
                " the task."
            )
    if not kwargs.get("do_sample"):
        return Sampling()
    settings: dict[str, Any] = {}
    for name, default in SAMPLING.items():
        value = kwargs.get(name)
        settings[name] = default if value is None else value  # a temperature of 0 is greedy
    return Sampling(**settings)
