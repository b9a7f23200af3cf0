"""Every command of the command line in the tour and the two pages about use runs, on a tiny pair and a tiny task."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
import yaml

from gistgate.cli import main as cli
from gistgate.gates.config import GateConfig
from gistgate.gates.gate import Gate
from gistgate.identity import identify_model, identify_tokenizer
from tests.certificates.proofs import point, proof_for
from tests.tiny import byte_tokenizer, save_pair, tiny_pair, write_rows, write_task

ROOT = Path(__file__).parents[1]
PAGES = ("tour", "use", "own-pair")
SHORT = ["--max-new-tokens", "24"]
MORE = {
    **dict.fromkeys(("doctor", "generate", "trace", "bench", "tune"), SHORT),
    "calibrate": ["--target", "TARGET", "--budget", "0.4", "--development", "20", "--prompts", "60"],
    "eval": ["--include_path", "data/tasks", "--limit", "2"],
}
"""Options behind those of the page, which keep a run short or name what a tiny gate does not know."""
ELSEWHERE = {
    "demo": "tests/demo/test_command.py starts the server",
    "pip": "tests/project/test_wheel.py installs the wheel",
    "dvc": "tests/project/test_wheel.py runs every stage",
    "make": "tests/test_smoke.py runs every stage",
    "cd": "one folder serves for clone and project",
    "source": "the environment of the tests is active",
}
SCOPE = {"guards": [], "temperature": 0.0, "prompting": {"num_fewshot": 0, "chat_template": False, "system": None}}


def commands(page):
    """The command lines in the blocks of a page, without those in a language."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / f"docs/{page}.md").read_text(), flags=re.S | re.M)
    lines = [line for language, block in blocks if not language for line in block.splitlines()]
    return [shlex.split(line.replace("$'", "'"), comments=True) for line in lines if line.strip()]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with everything that the pages name."""
    monkeypatch.chdir(tmp_path)
    tokenizer, (target, draft) = byte_tokenizer(), tiny_pair(noise=0.3)
    save_pair(tmp_path / "models/embedded", target, draft, tokenizer)
    partners = identify_model(target), identify_model(draft), identify_tokenizer(tokenizer)
    gate = Gate(GateConfig({"type": "linear"}, {"h_tok:post": 32}, *partners))
    gate.save("models/export")
    kept = proof_for(gate, point(0.03, settings={"risk": 1.0}))
    vars(kept)["scope"].update(SCOPE)
    kept.save("models/export")
    texts = ("Tom has", "Anna gave", "It is", "One and")
    rows = [{"context": text, "doc": {"question": text, "answer": "#### 1"}} for text in texts]
    Path("prompts.txt").write_text("".join(row["context"] + "\n" for row in rows))
    Path("data/prompts").mkdir(parents=True)
    for split in ("test", "development"):
        write_rows(Path(f"data/prompts/{split}.jsonl"), rows)
    shutil.move(write_task(tmp_path, num_train=90), "data/tasks")
    task = yaml.safe_load(Path("data/tasks/sums.yaml").read_text())
    for name in ("gsm8k", "wordproblems"):
        Path(f"data/tasks/{name}.yaml").write_text(yaml.safe_dump({**task, "task": name}))
    return {"TARGET": "models/embedded/target", "DRAFT": "models/embedded/draft"}


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_runs(page, place, monkeypatch, capsys):
    ran = []
    for words in commands(page):
        if words[0] != "gistgate" or words[1] == "demo":
            assert words[0] in {"gistgate", "export", *ELSEWHERE}, words  # a shell's export sets a variable
            continue
        filled = [re.sub("TARGET|DRAFT", lambda found: place[found.group()], one) for one in words]
        more = [place.get(one, one) for one in MORE.get(words[1], [])]
        if words[1] == "calibrate" and "--target" in words:
            more = more[2:]
        monkeypatch.setattr("sys.argv", [*filled, *more])
        with pytest.raises(SystemExit) as left:
            cli.main()
        said = capsys.readouterr()
        assert not left.value.code, f"{' '.join(words)}: {said.err[-500:]}"
        ran.append(words[1])
    assert len(ran) >= 4
