"""What SECURITY.md promises: no pickles, no code from elsewhere, no secrets in records, nothing
that is not escaped.
"""

import ast
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from gistgate.core.files import load_tensors
from gistgate.core.utils import UserError, printable
from gistgate.export.write import certified_modules, flatten
from gistgate.lm_eval.model import GatedLM
from gistgate.measure.trace_page import render
from gistgate.models.loading import load_target
from pipeline import tracking
from pipeline.report.tables import page, plain_markdown
from tests.pipeline.parameters import parameters
from tests.tiny import byte_tokenizer, save_pair, tiny_pair

ROOT = Path(__file__).parents[1]
SECRET = "hf_thisIsASecretThatNobodyMaySee"


class Trap:
    """Says so when somebody unpickles it."""

    def __reduce__(self) -> Any:
        return (pytest.fail, ("the pickle was read",))


def test_a_planted_pickle_is_refused_and_not_read(tmp_path: Path):
    save_pair(tmp_path, *tiny_pair(), byte_tokenizer())
    (tmp_path / "target/model.safetensors").unlink()
    (tmp_path / "target/pytorch_model.bin").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(UserError, match="could not be loaded"):
        load_target(str(tmp_path / "target"))
    with pytest.raises(UserError, match="could not be loaded"):
        GatedLM(str(tmp_path / "target"), device="cpu")
    torch.save({"a": Trap()}, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="is damaged"):
        load_tensors(tmp_path / "model.safetensors")


def test_code_in_a_model_folder_is_not_run(tmp_path: Path):
    save_pair(tmp_path, *tiny_pair(), byte_tokenizer())
    config = tmp_path / "target/config.json"
    mapped = '{"auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"},'
    config.write_text(config.read_text().replace("{", mapped, 1).replace('"llama"', '"evil"'))
    (tmp_path / "target/evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(UserError, match="runs code of its makers, which GistGate never does"):
        load_target(str(tmp_path / "target"))
    assert not (tmp_path / "ran").exists()


ALLOWED = {"numpy", "safetensors", "torch", "transformers"} | sys.stdlib_module_names
HARMFUL = {
    "asyncio", "code", "codeop", "concurrent", "ctypes", "ftplib", "http", "imaplib",
    "importlib", "multiprocessing", "nntplib", "pkgutil", "platform", "poplib", "pty", "runpy",
    "signal", "smtplib", "socket", "socketserver", "ssl", "subprocess", "telnetlib", "urllib",
    "webbrowser", "xmlrpc",
}  # fmt: skip
"""Standard modules with a way to the network, to other processes or to code by name."""
OF_ONE = {"core_attention.py": {"ctypes", "platform"}}
"""What one file may ask: glibc's own mallopt sets its thresholds."""


def imported_modules(text: str) -> set[str]:
    """The modules outside its own package that a source imports, by their first name."""
    names = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.append(node.module or "")
    return {name.split(".")[0] for name in names}


def test_exported_code_imports_what_is_allowed_and_nothing_else(tmp_path: Path):
    for name, text in flatten(extra=certified_modules(tmp_path)).items():
        allowed = ALLOWED - HARMFUL | OF_ONE.get(name, set())
        assert imported_modules(text) <= allowed, name


def test_servers_listen_on_this_machine_alone():
    lines = (ROOT / "Makefile").read_text().splitlines()
    servers = [line for line in lines if "mlflow server" in line]
    assert servers and all("--host 127.0.0.1" in line for line in servers)


def test_no_secret_of_the_environment_reaches_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    for name in ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY", "MLFLOW_TRACKING_PASSWORD"):
        monkeypatch.setenv(name, SECRET)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    params = parameters()
    with tracking.run(params, "secret", kind="method") as record:
        record.log_params({"rule": "fly", "nested": {"theta": 0.5}})
        record.log_metrics({"accuracy": 0.5})
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert (tmp_path / "mlflow.db") in written
    assert not [path for path in written if SECRET.encode() in path.read_bytes()]


def test_a_model_card_escapes_what_a_gate_says():
    name = f"{ATTACK}\n# Heading\x1b[2J"
    said = plain_markdown(name)
    assert "<" not in said and "\n" not in said and "\x1b" not in said and "`" not in said


ATTACK = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'`{{7*7}}"


def test_templates_escape_everything(tmp_path: Path):
    (tmp_path / "hostile.html.j2").write_text('<p title="{{ text }}">{{ text }}</p>')
    for html in (
        page(str(tmp_path / "hostile"), text=ATTACK),
        render(tmp_path / "hostile.html.j2", styles=(), text=ATTACK),
    ):
        assert "<script>alert" not in html and "<img" not in html and html.count('"') == 2


@pytest.mark.parametrize("text", ["a\u202eb", "\x1b[31m", "\u200f", "\ud800", "\x9b2J"])
def test_no_text_steers_a_terminal(text: str):
    shown = printable(text)
    assert shown.isascii() and shown.isprintable() and shown != text
    assert printable("naïve 日本語\u00a0👍\n") == "naïve 日本語\u00a0👍\n"
