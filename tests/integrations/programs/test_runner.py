"""Programs of a model run to their end or fail; none of them reaches beyond its own process and folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gistgate.integrations.programs import child
from gistgate.integrations.programs.runner import Limits, runs

SMALL = Limits(seconds=1, memory_mb=512, file_mb=1)

FINE = {
    "a passing test": "def double(x):\n    return 2 * x\nassert double(3) == 6",
    "much printing": "import sys\nprint('x' * 1_000_000)\nprint('y', file=sys.stderr)",
    "a file in its own folder": "import os\nassert os.listdir() == []\nopen('a', 'w').write('b')\nos.remove('a')",
    "a dataclass": "from dataclasses import dataclass\n@dataclass\nclass A:\n    a: int\nassert A(1).a == 1",
    "closed input": "import sys\nassert sys.stdin is None or sys.stdin.read() == ''",
}
BROKEN = {
    "a failing test": "assert 1 + 1 == 3",
    "no Python": "def (",
    "an infinite loop": "while True: pass",
    "a sleep": "import time\ntime.sleep(1000)",
    "a memory bomb": "kept = []\nwhile True: kept.append('x' * 1_000_000)",
    "a fork bomb": "import os\nwhile True: os.fork()",
    "a thread": "import threading\nthreading.Thread(target=print).start()",
    "a shell": "import os\nassert os.system('true') == 0",
    "a process": "import subprocess\nsubprocess.run(['true'], check=True)",
    "a socket": "import socket\nsocket.socket()",
    "a signal to its parent": "import os\nos.kill(os.getppid(), 9)",
    "a huge file": "open('a', 'wb').write(bytes(3_000_000))",
    "a recursion without end": "def f(): return f()\nf()",
    "leaving early": "import sys\nsys.exit(0)",
    "leaving at once": "import os\nos._exit(0)",
    "half a character": "x = '\ud800'\nraise ValueError",
}


@pytest.mark.parametrize("program", FINE.values(), ids=FINE)
def test_what_runs_to_its_end_passes(program: str) -> None:
    assert runs(program, SMALL)


@pytest.mark.parametrize("program", BROKEN.values(), ids=BROKEN)
def test_what_does_not_run_to_its_end_fails(program: str) -> None:
    assert not runs(program, SMALL)


def test_files_outside_its_folder_stay_as_they_are(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("as it was")
    for change in ("open({0!r}, 'w')", "os.remove({0!r})", "os.rename({0!r}, 'b')", "os.open({0!r}, os.O_TRUNC)"):
        assert not runs("import os\n" + change.format(str(kept)), SMALL)
    assert not runs(f"open({str(tmp_path / 'new')!r}, 'w')", SMALL)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"] and kept.read_text() == "as it was"


def test_the_environment_stays_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GISTGATE_SECRET", "a key")
    assert os.environ["GISTGATE_SECRET"]
    assert runs("import os\nassert 'GISTGATE_SECRET' not in os.environ and 'HOME' not in os.environ", SMALL)


def test_an_equal_program_has_an_equal_verdict() -> None:
    """The order of a set of texts is the same in every process."""
    program = "assert list({'ab', 'cd', 'ef', 'gh', 'ij'})[0] == 'VALUE'"
    found = [word for word in ("ab", "cd", "ef", "gh", "ij") if runs(program.replace("VALUE", word), SMALL)]
    assert len(found) == 1


def test_the_hook_alone_refuses_processes_sockets_and_changes(tmp_path: Path) -> None:
    """What stands where the kernel has no filter; the hook is called by hand, because it can never be removed."""
    hook = child.Hook(str(tmp_path))
    hook("open", (str(tmp_path / "a"), "w", os.O_WRONLY))
    hook("open", ("/etc/hostname", "r", os.O_RDONLY))
    for event, arguments in (
        ("os.fork", ()), ("subprocess.Popen", ("true",)), ("socket.connect", (None, None)), ("os.kill", (1, 9)),
        ("open", (str(tmp_path.parent / "a"), "w", os.O_WRONLY)), ("os.rename", ("a", str(tmp_path / "../a"))),
    ):  # fmt: skip
        with pytest.raises(PermissionError):
            hook(event, arguments)
