"""A tiny pair and a tiny task, made on the spot: no network, no files but those in the folder that
a test gives.
"""

import copy
import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TASK = """
task: sums
dataset_path: json
dataset_kwargs:
  data_files: {{train: {folder}/train.jsonl, test: {folder}/test.jsonl}}
output_type: generate_until
training_split: train
test_split: test
fewshot_split: train
doc_to_text: "Q: {{{{question}}}}\\nA:"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["\\n", "Q:"], do_sample: false{limit}}}
filter_list:
  - name: answer
    filter: [{{function: regex, regex_pattern: "#### (-?[0-9.,]+)"}}, {{function: take_first}}]
  - name: loose
    filter:
      - {{function: regex, regex_pattern: "(-?[0-9]+)", group_select: -1}}
      - {{function: take_first}}
metric_list:
  - {{metric: exact_match, aggregation: mean, higher_is_better: true,
     regexes_to_ignore: [",", "(?s).*#### "]}}
"""


def write_task(
    folder: Path, num_train: int = 30, num_test: int = 6, limit: int | None = 12, **changes: str
) -> Path:
    """A task `sums` in `folder`/tasks with its documents beside it; `changes` replace text in its
    YAML.
    """
    for name, start, number in (("train", 0, num_train), ("test", 1000, num_test)):
        rows = [
            {"question": f"{n} + 1?", "answer": f"It is so.\n#### {n + 1}"}
            for n in range(start, start + number)
        ]
        write_rows(folder / f"{name}.jsonl", rows)
    text = TASK.format(folder=folder, limit="" if limit is None else f", max_gen_toks: {limit}")
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    tasks = folder / "tasks"
    tasks.mkdir(exist_ok=True)
    (tasks / "sums.yaml").write_text(text)
    return tasks


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """One JSON object per line."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def byte_tokenizer(bos: bool = True, reverse: bool = False) -> PreTrainedTokenizerFast:
    """One token per byte, no training; with `bos` it puts <s> first, as Llama's does.

    With `reverse` it is another tokenizer of the same size: the bytes are numbered from the last to
    the first.
    """
    alphabet = [
        "<pad>",
        "<s>",
        "</s>",
        *sorted(pre_tokenizers.ByteLevel.alphabet(), reverse=reverse),
    ]
    raw = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    if bos:
        raw.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 1)]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        padding_side="left",
    )


def tiny_pair(context: int = 512, noise: float = 0.1) -> tuple[LlamaForCausalLM, LlamaForCausalLM]:
    """A random Llama and a noisy copy that agrees with it in most positions."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=259,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    target = LlamaForCausalLM(config).eval()
    draft = copy.deepcopy(target)
    with torch.no_grad():
        for weight in (weight for weight in draft.parameters() if weight.std() > 0):
            weight.add_(noise * weight.std() * torch.randn_like(weight))
    return target, draft


def save_pair(folder: Path, target: Any, draft: Any, tokenizer: Any) -> None:
    """Write target/ and draft/ as a hub would give them, both with the tokenizer."""
    for model, name in ((target, "target"), (draft, "draft")):
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
