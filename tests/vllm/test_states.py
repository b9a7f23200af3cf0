"""Hidden states that vLLM dumps are those of transformers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from gistgate.core.features import tap
from gistgate.core.files import load_tensors

pytestmark = pytest.mark.vllm
ROOT = Path(__file__).parents[2]

SCRIPT = """
import json, sys
from pathlib import Path
from tests.vllm.engine import prepare

job = json.loads(Path(sys.argv[1]).read_text())
prepare(job)
from gistgate.core.files import save_tensors
from pipeline.labels.vllm import VllmStates
from pipeline.pair.pair import ModelSource

folder = Path(job["cache"]) / "states"
arguments = {"enforce_eager": True, "max_model_len": 256, "max_num_seqs": 4}
states = VllmStates(ModelSource(job["target"], dtype="float32"), job["layers"], arguments, folder)
found = [one for part in (job["texts"][:5], job["texts"][5:]) for one in states(part)]
save_tensors(sys.argv[2], {str(number): one for number, one in enumerate(found)})
left = {path.name.removesuffix(".lock") for path in folder.iterdir()}
assert len(left) <= 1, f"states that were read are left behind: {left}"
"""


def test_states_are_those_of_transformers(place: Path, tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(0)
    texts = [torch.randint(3, 259, (5 + 9 * n,), generator=draw).tolist() for n in range(9)]
    job = {"target": str(place / "target"), "cache": str(tmp_path), "layers": [1, 2], "texts": texts}
    (tmp_path / "job.json").write_text(json.dumps(job))
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "job.json"), str(tmp_path / "found.safetensors")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    found = load_tensors(tmp_path / "found.safetensors")
    target = AutoModelForCausalLM.from_pretrained(place / "target", dtype="float32").eval()
    for number, text in enumerate(texts):
        with torch.no_grad(), tap(target, ["layer:0", "layer:1"]) as seen:
            target(torch.tensor([text]))
        expected = torch.stack([seen["layer:0"][0], seen["layer:1"][0]], dim=1)
        torch.testing.assert_close(found[str(number)], expected, rtol=1e-4, atol=1e-4)
