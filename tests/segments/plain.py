"""Run by test_serving in a process of its own: plain transformers, no gistgate.

python -I plain.py FOLDER

FOLDER holds target/, draft/, probes/ and requests.json; the answers go to answers.json.
"""

import json
import sys
import warnings
from pathlib import Path

sys.modules["gistgate"] = None  # type: ignore[assignment]  # installed or not: from now on it cannot be imported
import torch  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

folder = Path(sys.argv[1])
tokenizer = AutoTokenizer.from_pretrained(folder / "target", padding_side="left")
target, draft = (
    AutoModelForCausalLM.from_pretrained(folder / name) for name in ("target", "draft")
)
probes, answers = str(folder / "probes"), {}
for name, request in json.loads((folder / "requests.json").read_text()).items():
    inputs = tokenizer(
        request["prompts"], return_tensors="pt", padding=True, return_token_type_ids=False
    )
    parts = {
        "draft_model": draft,
        "segments": probes,
        "tokenizer": tokenizer,
        "custom_generate": probes,
    }
    report: list = []
    torch.manual_seed(7)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ids = target.generate(
            **inputs, **parts, trust_remote_code=True, report=report, **request["arguments"]
        )
    answers[name] = {
        "ids": [answer.ids for answer in report],
        "prompts_kept": ids[:, : inputs.input_ids.shape[1]].tolist() == inputs.input_ids.tolist(),
        "loose": sum(answer.statistics.loose for answer in report),
        "warnings": [
            str(warning.message) for warning in caught if "certificate" in str(warning.message)
        ],
    }
assert not any(name.startswith("gistgate") and module for name, module in sys.modules.items())
(folder / "answers.json").write_text(json.dumps(answers))
