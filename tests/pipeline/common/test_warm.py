"""Commands of a run are forks of one process, and behave as processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pipeline.common import warm
from pipeline.common.warm_server import LIBRARIES

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems start every stage afresh")
ROOT = Path(__file__).parents[3]

COMMAND = """
import json, os, sys
from pathlib import Path

own = [name for name in sys.modules if name.split(".")[0] in ("gistgate", "pipeline")]
print(json.dumps([sys.argv[1:], os.getcwd(), os.environ["WORD"], "torch" in sys.modules, own, __name__]), flush=True)
print("aside", file=sys.stderr)
if "wait" in sys.argv:
    Path("began").write_text(str(os.getpid()))
    try:
        sys.stdin.read()
    except KeyboardInterrupt:
        Path("interrupted").touch()
        raise
if "text" in sys.argv:
    sys.exit("one sentence")
sys.exit(3 if "fail" in sys.argv else None)
"""


@pytest.fixture(scope="module", autouse=True)
def _warm() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where a script started the tests with &
    with warm.warm():
        yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def _command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "command.py").write_text(COMMAND)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORD", "told")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def start(*words: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(["python", "-m", "command", *words], stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def until(found) -> bool:
    end = time.monotonic() + 20
    while not found() and time.monotonic() < end:
        time.sleep(0.02)
    return bool(found())


def begun(words: tuple[str, ...] = ("wait",)) -> tuple[subprocess.Popen[str], int]:
    """A command that waits, and the number of its process."""
    client = start(*words)
    assert until(lambda: Path("began").exists() and Path("began").read_text())
    return client, int(Path("began").read_text())


@pytest.mark.parametrize(("words", "status"), [((), 0), (("a b", "fail"), 3)])
def test_a_command_has_its_words_place_environment_and_exit_status(tmp_path, words, status):
    client = start(*words)
    out, aside = client.communicate()
    arguments = str(list(words)).replace("'", '"')
    assert out == f'[{arguments}, "{tmp_path}", "told", true, [], "__main__"]\n' and aside == "aside\n"
    assert client.returncode == status


def test_a_command_that_ends_with_a_sentence_prints_it_and_fails():
    client = start("text")
    assert client.communicate()[1].endswith("one sentence\n") and client.returncode == 1


def test_changed_code_is_the_code_of_the_next_command():
    assert start().wait() == 0
    Path("command.py").write_text("raise SystemExit(7)")
    assert start().wait() == 7


def test_a_command_ends_with_its_client():
    client, process = begun()
    assert process != client.pid
    client.kill()
    client.wait()
    assert until(lambda: not psutil.pid_exists(process))


def test_an_interrupted_command_can_clean_up():
    client, process = begun()
    client.send_signal(signal.SIGINT)
    assert client.wait(20) == 128 + signal.SIGINT
    assert Path("interrupted").exists() and until(lambda: not psutil.pid_exists(process))


def test_a_killed_command_is_told_as_such():
    client, process = begun()
    os.kill(process, signal.SIGKILL)
    assert client.wait() == -signal.SIGKILL


def test_other_calls_of_python_are_the_ordinary_one():
    found = subprocess.run(["python", "-c", "import sys; print('torch' in sys.modules, sys.executable)"], stdout=-1)
    assert found.stdout.decode().split() == ["False", sys.executable]


def test_without_the_process_a_command_runs_by_itself(tmp_path, monkeypatch):
    client = warm.write_client(tmp_path / "bin", tmp_path / "nobody")
    monkeypatch.setenv("PATH", f"{client.parent}{os.pathsep}{os.environ['PATH']}")
    command = start("fail")
    assert "false" in command.communicate()[0] and command.returncode == 3


def test_the_switch_leaves_everything_as_it_is(monkeypatch):
    monkeypatch.setenv(warm.SWITCH, "off")
    before = os.environ["PATH"]
    with warm.warm():
        assert os.environ["PATH"] == before


def test_without_room_for_it_commands_run_as_ever(monkeypatch):
    def full(**_given):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(warm.tempfile, "TemporaryDirectory", full)
    before = os.environ["PATH"]
    with warm.warm():
        assert os.environ["PATH"] == before


def test_the_process_ends_with_the_run_that_started_it():
    script = "import time; from pipeline.common.warm import warm\nwith warm(): print(flush=True); time.sleep(3600)"
    run = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert run.stdout is not None and run.stdout.readline()
    (process,) = psutil.Process(run.pid).children()
    run.kill()
    run.wait()
    assert until(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)


def test_every_library_exists():
    assert not [name for name in LIBRARIES if name.partition(".")[0] not in {"mlflow", "lm_eval"} and not exists(name)]


def exists(name: str) -> bool:
    from importlib.util import find_spec

    return find_spec(name) is not None
