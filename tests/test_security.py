"""What SECURITY.md promises: no pickles, no code from elsewhere, no secrets in records, nothing that is not escaped."""

import ast
import pickle
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from gistgate.core.files import load_tensors
from gistgate.core.utils import UserError
from gistgate.demo.page import render
from gistgate.demo.server import claim
from gistgate.export.write import certified_modules, flatten
from gistgate.lm_eval.model import GatedLM
from gistgate.models.loading import load_target
from pipeline import tracking
from pipeline.params import parse_params
from pipeline.report.tables import page, plain_markdown
from tests.tiny import byte_tokenizer, save_pair, tiny_pair

ROOT = Path(__file__).parents[1]
SOURCES = [path for top in ("gistgate", "pipeline", "benchmarks") for path in sorted((ROOT / top).rglob("*.py"))]
UNPICKLES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "jsonpickle"}
RUNS_TEXT = {"eval", "exec", "compile", "__import__"}
PROGRAMS = ROOT / "gistgate/lm_eval/code_tasks.py"  # runs a model's program where that was allowed, in its own process
SECRET = "hf_thisIsASecretThatNobodyMaySee"


@cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text())))


def calls(path: Path) -> list[ast.Call]:
    return [node for node in nodes(path) if isinstance(node, ast.Call)]


def dotted(node: ast.AST) -> str:
    """The name that a call is written with: "torch.load"."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def keywords(call: ast.Call) -> dict[str | None, Any]:
    return {item.arg: getattr(item.value, "value", item.value) for item in call.keywords}


def check_source(path: Path) -> None:
    """Refuse what unpickles or runs text: torch.load only with weights_only, numpy without objects, no eval."""
    for node in nodes(path):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert not UNPICKLES & {name.split(".")[0] for name in names}, path
    for call in calls(path):
        name, given = dotted(call.func), keywords(call)
        assert name not in RUNS_TEXT or path == PROGRAMS
        assert name not in ("yaml.unsafe_load", "yaml.full_load", "np.fromfile")
        assert given.get("shell") is not True and "allow_pickle" not in given
        assert not name.endswith(("torch.load", "read_pickle")) or given.get("weights_only") is True
        if name == "yaml.load":
            assert "Loader" in given or "YAML" in path.read_text()  # ruamel's safe object, or our own safe loader


STARTS = {"run", "Popen", "check_output", "check_call", "call"}
SHELLS = re.compile(
    r"(os\.(system|popen|exec\w*|spawn\w*|posix_spawn\w*)|subprocess\.get(status)?output|\w*_subprocess_shell)$"
)
HIDDEN = {"os": {"system", "popen"}, "subprocess": {"getoutput", "getstatusoutput"}, "torch": {"load"}}
"""Names that would hide from these checks once they are imported by themselves."""
PROGRAM_NAMES = {"git", "dvc"}
"""What may be started by name; everything else is an interpreter of Python, or what a person typed."""


def check_starts(path: Path) -> None:
    """Refuse shells, and programs that are named in a text other than those of PROGRAM_NAMES."""
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom):
            names = {alias.name for alias in node.names}
            assert not names & HIDDEN.get(node.module or "", set()), f"{path}: {names}"
    for call in calls(path):
        name = dotted(call.func)
        assert not SHELLS.search(name), f"{path}: {name}"
        if name.startswith("subprocess.") and name.split(".")[1] in STARTS and call.args:
            first = call.args[0]
            assert not isinstance(first, ast.Constant | ast.JoinedStr), f"{path}: {ast.unparse(first)}"
            if isinstance(first, ast.List) and first.elts and isinstance(first.elts[0], ast.Constant):
                assert first.elts[0].value in PROGRAM_NAMES, f"{path}: {ast.unparse(first)}"


def test_no_source_unpickles_runs_text_or_starts_other_programs_than_git_dvc_and_python():
    assert {path.relative_to(ROOT).parts[0] for path in SOURCES} == {"gistgate", "pipeline", "benchmarks"}
    for path in SOURCES:
        check_source(path)
        check_starts(path)


@pytest.mark.parametrize(
    "text",
    ["import pickle", "from joblib import load", "torch.load(p)", "torch.load(p, weights_only=False)", "eval(t)",
     "np.load(p, allow_pickle=True)", "subprocess.run(c, shell=True)", "pd.read_pickle(p)",
     "subprocess.run(['sh', '-c', t])", "subprocess.run(['curl', url])", "subprocess.run('ls')", "os.popen(c)",
     "os.execvp(c, a)", "subprocess.getoutput(c)", "from os import system", "from torch import load",
     "asyncio.create_subprocess_shell(c)"],
)  # fmt: skip
def test_the_checks_of_sources_can_fail(tmp_path: Path, text: str):
    (tmp_path / "bad.py").write_text(text)
    checks = (check_source, check_starts)
    assert not all(passes(check, tmp_path / "bad.py") for check in checks)


def passes(check: Callable[[Path], None], path: Path) -> bool:
    try:
        check(path)
    except AssertionError:
        return False
    return True


def test_models_are_loaded_without_code_from_their_folders():
    """`trust_remote_code` is False or what the user of vLLM said; nobody writes True."""
    given = [keywords(call) for path in SOURCES for call in calls(path)]
    said = {one["trust_remote_code"] for one in given if "trust_remote_code" in one}
    assert False in said and True not in said


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
    with pytest.raises(UserError, match="could not be loaded"):
        load_target(str(tmp_path / "target"))
    assert not (tmp_path / "ran").exists()


ALLOWED = {"numpy", "safetensors", "torch", "transformers"}
HARMLESS = {
    "__future__", "abc", "bisect", "collections", "contextlib", "copy", "dataclasses", "difflib", "enum", "errno",
    "functools", "hashlib", "heapq", "inspect", "itertools", "json", "math", "numbers", "operator", "os", "pathlib",
    "random", "re", "shlex", "shutil", "stat", "statistics", "string", "threading", "time", "types", "typing",
    "warnings", "weakref",
}  # fmt: skip
"""Standard modules without a way to the network, to other processes or to code by name."""
OF_OS = {"getpid", "environ", "fspath", "path", "PathLike", "replace", "O_RDONLY", "close", "fsync", "open", "walk"}
"""What exported code may ask of `os`."""
OF_ONE = {"core_attention.py": {"ctypes", "platform"}, "models_loading.py": {"importlib"}}
"""What one file may ask: glibc's own mallopt sets its thresholds, and `find_spec` says whether a library is there."""


def test_exported_code_imports_what_is_allowed_and_nothing_else(tmp_path: Path):
    texts = flatten(extra=certified_modules(tmp_path))
    for name, text in texts.items():
        for node in ast.walk(ast.parse(text)):
            found = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            found += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            tops = {module.split(".")[0] for module in found}
            assert tops <= ALLOWED | HARMLESS | OF_ONE.get(name, set()), name
            if isinstance(node, ast.Attribute) and dotted(node.value) == "os":
                assert node.attr in OF_OS, name
            if isinstance(node, ast.Call):
                assert dotted(node.func) not in RUNS_TEXT, name


def test_servers_listen_on_this_machine_alone():
    """No source names an address other than this machine's, and the demo binds to it."""
    for path in [*SOURCES, ROOT / "Makefile"]:
        assert not re.search(r"0\.0\.0\.0|host\s*=\s*[\"']{2}", path.read_text()), path
    with claim(0) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"
    served = [line for line in (ROOT / "Makefile").read_text().splitlines() if "mlflow server" in line]
    assert served and all("--host 127.0.0.1" in line for line in served)


def test_no_secret_of_the_environment_reaches_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    for name in ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY", "MLFLOW_TRACKING_PASSWORD"):
        monkeypatch.setenv(name, SECRET)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    params = parse_params({})
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


def test_every_dependency_is_pinned():
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] not in "#-"]
    pinned = re.compile(r"[A-Za-z0-9_.\[\]-]+==[^=]+")
    assert len(lines) > 50 and all(pinned.fullmatch(line.split(";")[0].strip()) for line in lines)


ATTACK = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'`{{7*7}}"


def test_templates_escape_everything(tmp_path: Path):
    (tmp_path / "hostile.html.j2").write_text('<p title="{{ text }}">{{ text }}</p>')
    for html in (
        page(str(tmp_path / "hostile"), text=ATTACK),
        render(str(tmp_path / "hostile.html.j2"), scripts=(), styles=(), text=ATTACK),
    ):
        assert "<script>alert" not in html and "<img" not in html and html.count('"') == 2


def test_nothing_but_our_own_files_skips_escaping():
    """`|safe` stands in no template, and Markup is called where our own tables and styles are put in."""
    templates = [path for top in ("gistgate", "pipeline") for path in (ROOT / top).rglob("*.html.j2")]
    assert templates and not [path for path in templates if re.search(r"\|\s*safe|autoescape", path.read_text())]
    users = {str(path.relative_to(ROOT)) for path in SOURCES if "Markup(" in path.read_text()}
    assert users <= {"gistgate/demo/page.py", "pipeline/stages/report.py"}
