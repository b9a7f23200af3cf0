"""What vLLM makes for the pipeline: its rollouts are the decoder's."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from gistgate.core.decoder import Decoder
from gistgate.rules import make_rule
from pipeline.labels.rollouts import Cost, PrefixCache, Rollout, RolloutRunner
from tests.pipeline.labels.ends import ends
from tests.tiny import byte_tokenizer

pytestmark = pytest.mark.vllm

PREPARED = """
import json, sys
from dataclasses import asdict
from pathlib import Path
from tests.vllm.engine import prepare

job = json.loads(Path(sys.argv[1]).read_text())
prepare(job)
from pipeline.labels.rollouts import Cost, Rollout
from pipeline.labels.vllm import EngineRunner, VllmEngine
from pipeline.pair.pair import ModelSource
from tests.pipeline.labels.ends import ends
from tests.tiny import byte_tokenizer

source = ModelSource(job["target"], dtype="float32")
"""
ROLLOUTS = """
engine = VllmEngine(source, {"enforce_eager": True, "max_model_len": 256, "max_num_seqs": 8})
runner = EngineRunner(engine, byte_tokenizer(), Cost(), **job["request"])
rollouts = [Rollout(**one) for one in job["rollouts"]]
found = {}
for rejoin in (None, 8):
    found[str(rejoin)] = [asdict(ended) for ended in ends(runner, rollouts, rejoin)]
Path(sys.argv[2]).write_text(json.dumps(found))
"""


def run(script: str, folder: Path, **job: Any) -> Path:
    """The file that a script with vLLM writes, in a process of its own."""
    (folder / "job.json").write_text(json.dumps({"cache": str(folder), **job}))
    command = [sys.executable, "-c", PREPARED + script, folder / "job.json", folder / "found"]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / "found"


def test_rollouts_are_those_of_the_decoder(place: Path, tmp_path: Path):
    """Same ids, same ends, from the same forced tokens."""
    tokenizer = byte_tokenizer()
    target = AutoModelForCausalLM.from_pretrained(place / "target", dtype="float32").eval()
    decoder = Decoder(target, None, make_rule("exact"), tokenizer=tokenizer)
    prompts = [[1, 40, 50], [1, 60, 61, 62]]
    plain = [
        answer.ids for answer in decoder.generate(prompts, max_new_tokens=80, eos_ids=(), stops=())
    ]
    request = {
        "max_new_tokens": 80,
        "eos_ids": [plain[0][60]],
        "stops": [tokenizer.decode(plain[1][50:53])],
    }
    own = [answer.ids for answer in decoder.generate(prompts, **request)]
    rollouts = [
        {
            "problem": n,
            "prompt": prompts[n],
            "text": own[n],
            "position": at,
            "token": 70,
            "reference": own[n],
        }
        for n in range(2)
        for at in range(0, len(own[n]) - 1, 6)
    ]
    path = run(ROLLOUTS, tmp_path, target=str(place / "target"), request=request, rollouts=rollouts)
    found = json.loads(path.read_text())
    runner = RolloutRunner(decoder, PrefixCache(decoder, 8), 8, Cost(), **request)
    asked = [Rollout(**one) for one in rollouts]
    assert [(ended["ids"], ended["finish"]) for ended in found["None"]] == [
        (one.ids, one.finish) for one in ends(runner, asked)
    ]
    assert [ended["finish"] for ended in found["8"]] == [
        one.finish for one in ends(runner, asked, 8)
    ]
