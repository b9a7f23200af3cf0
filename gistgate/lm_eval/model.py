"""An lm-eval model that generates through our decoder; importing this module registers it as
`gistgate`.
"""

import math
import re
import weakref
import zlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import fields, replace
from inspect import signature
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
from gistgate.core.utils import UserError, nearest, replaced
from gistgate.coverage.ask import UNKNOWN, Ask, stops_of
from gistgate.coverage.choose import GATED, STRICT
from gistgate.coverage.covers import Coverage
from gistgate.measure.speed import settle_batches
from gistgate.models.loading import warn_generation_config, whole_model
from gistgate.models.options import AUTO, NAMES
from gistgate.models.places import or_refuse, placed
from gistgate.models.tokenizers import encode, rendered, template
from gistgate.rules import complete, meant

# Generation arguments of tasks that change nothing here, and those that we know.
HARMLESS = {"attention_mask", "use_cache", "early_stopping", "return_dict_in_generate"}
SAMPLING = {"do_sample", "temperature", "top_k", "top_p"}
# prompts that the harness hands over at once for each row: a finished row is followed by the next
WAITING = 32

Served = defaultdict[
    tuple[int, ...], list[Generation]
]  # answers by the ids of their prompt, one for each request


MADE: dict[int, dict[str, Any]] = {}  # how the harness made a prompt, by the hash of its text
MAKE = ConfigurableTask.fewshot_context  # lm-eval's own method, and the models that ask
ASKING = set[int]()


def remembering(task: Any, doc: Any, num_fewshot: int, **how: Any) -> Any:
    """The harness's method that makes a prompt; a certificate asks how, and requests hold the text
    alone.
    """
    text = MAKE(task, doc, num_fewshot, **how)
    chat = bool(how.get("apply_chat_template"))
    in_one = (
        chat and num_fewshot and not how.get("fewshot_as_multiturn")
    )  # no certificate has them in one turn
    number = f"{num_fewshot} in one turn" if in_one else num_fewshot
    MADE[hash(str(text))] = {
        "chat": chat,
        "system": how.get("system_instruction"),
        "num_fewshot": number,
    }
    return text


def remember(model: Any) -> None:
    """Let `remembering` take the place of lm-eval's method while a model lives that compares
    requests.

    lm-eval makes prompts before it asks a model anything, and hands over neither the task nor how
    they were made.
    """
    ASKING.add(key := id(model))
    ConfigurableTask.fewshot_context = remembering
    weakref.finalize(model, forget, key)


def forget(key: int) -> None:
    """A model is gone; with the last one lm-eval's method comes back."""
    ASKING.discard(key)
    if not ASKING:
        ConfigurableTask.fewshot_context = MAKE
        MADE.clear()


@register_model("gistgate")
class GatedLM(HFLM):
    """HFLM with our decoder behind `_model_generate`; loglikelihoods are the target's as ever."""

    def __init__(
        self,
        pretrained: str | PreTrainedModel = "",
        decoder: Decoder | None = None,  # around the loaded model that `pretrained` is
        guards: str = "",  # their ids, joined by "+"
        seed: int = 0,  # of sampled answers; greedy ones have no use for it
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
        options = replace(
            options_from(kwargs), guards=tuple(name for name in guards.split("+") if name)
        )
        rule = options.rule or (GATED if options.gate else STRICT)
        self.known = {
            *NAMES,
            "guards",
            "seed",
            *complete(meant(rule)[0], {}),
            *signature(HFLM.__init__).parameters,
        }
        begin = super().__init__
        if isinstance(pretrained, str):
            pretrained, place = placed(pretrained, kwargs.pop("gguf_file", None))
            kwargs |= place
            or_refuse("model", pretrained, lambda: begin(pretrained=pretrained, **kwargs), **kwargs)
        else:
            begin(pretrained=pretrained, **kwargs)
        keep_freed_memory(self.model.device)
        warn_generation_config(self.model)
        if getattr(self, "accelerator", None) is not None:  # HFLM shards over CUDA devices only
            self._rank = self.accelerator.process_index
            self._world_size = self.accelerator.num_processes
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
            remember(self)
        self.seed = seed
        self.is_to_measure = options.speculate_up_to == AUTO
        self.rows = 0
        self.is_quiet = False
        self.prompting: list[
            dict[str, Any]
        ] = []  # how the prompts of the present requests were made, each way once
        self.served = Served(
            list
        )  # every answer; after a run of several processes the first one has all
        self.present = Served(list)  # those of the present requests

    def _create_model(self, pretrained: str, *arguments: Any, **options: Any) -> None:
        """The harness's own method; the weights have to be whole, finite and in safetensors, as
        everywhere else.
        """

        def whole(name: str, **options: Any) -> PreTrainedModel:
            try:
                return whole_model(name, **options)
            except TypeError as error:  # the model refuses what nobody else took of the arguments
                if (wrong := re.search(r"unexpected keyword argument '(\w+)'", str(error))) is None:
                    raise
                raise UserError(
                    f"--model_args has no '{wrong[1]}'. {nearest(wrong[1], self.known)}"
                ) from error

        with replaced(self, "AUTO_MODEL_CLASS", SimpleNamespace(from_pretrained=whole)):
            super()._create_model(pretrained, *arguments, **options)

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """The harness's own method with prompts for many rows; processes bring their counters
        together afterwards.
        """
        rows: int | str = self.batch_size_per_gpu
        self.is_quiet = disable_tqdm or self.rank != 0
        self.rows = rows if isinstance(rows, int) else 0
        self.present = Served(list)
        ways = {tuple(MADE.get(hash(one.args[0]), {}).items()) for one in requests}
        self.prompting = [{**dict(way), "arguments": self.chat_template_args} for way in ways]
        with replaced(self, "batch_size_per_gpu", rows * WAITING if self.rows else rows):
            texts: list[str] = super().generate_until(requests, disable_tqdm=disable_tqdm)
        if self.world_size > 1:
            for rank, served in enumerate(self.gather_object(self.present) or []):
                for prompt, answers in served.items() if rank != self.rank else ():
                    self.served[prompt] += answers
        return texts

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The harness's own method: the text of the template, which its command line may name."""
        if isinstance(chat_template, str):
            self.chat_template_args |= {"chat_template": chat_template}
        return (
            template(self.tokenizer, self.chat_template_args.get("chat_template"))
            if chat_template
            else None
        )

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
            return super().tok_batch_encode(
                strings, left_truncate_len=left_truncate_len, **how
            )  # it warns of a cut
        parts = (rows, self.tokenizer.pad_token_id), ([torch.ones_like(row) for row in rows], 0)
        return tuple(pad_sequence(one, True, value, "left") for one, value in parts)

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
        if self.is_to_measure:
            settle_batches(self.decoder, prompts[: self.rows or None], **request)
            self.is_to_measure = False
        request |= {"batch_size": self.rows or len(prompts), "seeds": self._seeds(prompts)}
        silent = self.is_quiet or None  # None: silent where no terminal is
        with tqdm(
            total=len(prompts), desc="Answers", unit="answer", leave=False, disable=silent
        ) as shown:
            answers = decode_all(self.decoder, prompts, progress=shown.update, **request)
        for prompt, answer in zip(prompts, answers, strict=True):
            for served in (self.served, self.present):
                served[tuple(prompt)].append(answer)
        longest = max(len(answer.ids) for answer in answers)
        pad = self.tokenizer.pad_token_id
        new = torch.tensor([answer.ids + [pad] * (longest - len(answer.ids)) for answer in answers])
        return torch.cat([context, new.to(context)], dim=1)

    def _check(self, temperature: float, stops: list[str]) -> None:
        """Refuse requests that a named certificate does not cover; warn of those that one beside a
        gate does not.
        """
        for way in self.prompting or [{}]:
            chat = way.get("chat", False)
            number = way.get("num_fewshot")
            ask = Ask(
                temperature=temperature,
                chat=chat,
                system=way.get("system"),
                num_fewshot=UNKNOWN if number is None else number,
                arguments=way.get("arguments", {}) if chat else {},
                stops=stops,
            )
            self.coverage.meet(ask)

    def _seeds(self, prompts: Sequence[Sequence[int]]) -> list[int]:
        """Seeds that follow the prompts, not their places in a batch; repeated prompts get
        others.
        """
        asked = Counter[tuple[int, ...]]()
        seeds = []
        for prompt in prompts:
            repeats = len(self.served.get(tuple(prompt), [])) + asked[tuple(prompt)]
            seeds.append(zlib.crc32(repr((self.seed, repeats, list(prompt))).encode()))
            asked[tuple(prompt)] += 1
        return seeds

    @property
    def statistics(self) -> Statistics:
        """The sum over all answers."""
        return total([answer.statistics for answers in self.served.values() for answer in answers])

    def get_model_info(self) -> dict[str, Any]:
        """What lm-eval stores beside its results: HFLM's facts, the rule and what was counted."""
        rule = self.decoder.rule
        counted = self.statistics
        ours = {
            "rule": rule.id,
            "settings": {field.name: getattr(rule, field.name) for field in fields(rule)},  # type: ignore[arg-type]
            "block": self.decoder.block,
            "speculate_up_to": self.decoder.speculate_up_to,
            "mean_accepted_length": counted.mean_accepted_length,
            "loose_per_100": counted.loose_per_100,
            "statistics": counted.as_dict(),
        }
        return {**super().get_model_info(), "gistgate": ours}


def sampling(kwargs: dict[str, Any]) -> Sampling:
    """The task's wishes as our settings."""
    neutral = {"num_beams": 1, "repetition_penalty": 1.0, "num_return_sequences": 1}
    for name, value in kwargs.items():
        if name not in HARMLESS | SAMPLING and value is not None and neutral.get(name) != value:
            raise UserError(
                f"The task asks for {name}={value}, which this decoder cannot do. Remove it from"
                " the task."
            )
    if not kwargs.get("do_sample"):
        return Sampling()
    usual = {"temperature": 1.0, "top_k": 0, "top_p": 1.0}
    said = {
        name: kwargs[name] for name in usual if kwargs.get(name) is not None
    }  # a temperature of 0 is greedy
    return Sampling(**{**usual, **said})
