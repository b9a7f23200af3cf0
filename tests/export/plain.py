"""Run by test_export in a process of its own: plain transformers, no gistgate.

python -I plain.py FOLDER

FOLDER holds target/, draft/, gate/ and requests.json; the answers go to answers.json.
"""

import json
import sys
import warnings
from pathlib import Path

sys.modules["gistgate"] = None  # type: ignore[assignment]  # installed or not: from now on it cannot be imported
try:
    import gistgate  # noqa: F401
except ImportError:
    pass
else:
    raise SystemExit("gistgate can be imported: this proves nothing")

import torch  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

folder = Path(sys.argv[1])
tokenizer = AutoTokenizer.from_pretrained(folder / "target", padding_side="left")
target, draft = (
    AutoModelForCausalLM.from_pretrained(folder / name) for name in ("target", "draft")
)
loaded = target.load_custom_generate(str(folder / "gate"), trust_remote_code=True)
answers = {}
for name, request in json.loads((folder / "requests.json").read_text()).items():
    inputs = tokenizer(
        request["prompts"], return_tensors="pt", padding=True, return_token_type_ids=False
    )
    arguments = {"draft_model": draft, "gate": str(folder / "gate"), **request["arguments"]}
    if "stop_strings" in arguments:
        arguments["tokenizer"] = tokenizer
    report: list = []
    torch.manual_seed(7)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        arguments = {**inputs, **arguments, "report": report}
        try:
            if name == "loaded":
                ids = loaded(target, **arguments)
            else:
                ids = target.generate(
                    custom_generate=str(folder / "gate"), trust_remote_code=True, **arguments
                )
        except Exception as error:
            if type(error).__name__ != "UserError":
                raise
            answers[name] = {"error": str(error)}
            continue
    answers[name] = {
        "ids": ids.tolist(),
        "width": inputs.input_ids.shape[1],
        "loose": sum(answer.statistics.loose for answer in report),
        "warnings": [
            str(warning.message) for warning in caught if "certificate" in str(warning.message)
        ],
    }
assert not any(name.startswith("gistgate") and module for name, module in sys.modules.items())
(folder / "answers.json").write_text(json.dumps(answers))
