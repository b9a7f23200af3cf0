"""Programs of a model run to their end or fail; none of them reaches beyond its own process and folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gistgate.lm_eval.code_tasks import Limits, runs

SMALL = Limits(seconds=1, memory_mb=512, file_mb=1)

FINE = {
    "a passing test": "def double(x):\n    return 2 * x\nassert double(3) == 6",
    "much printing": "import sys\nprint('x' * 1_000_000)\nprint('y', file=sys.stderr)",
    "a file in its own folder": "import os\nassert os.listdir() == []\nopen('a', 'w').write('b')\nos.remove('a')",
    "a dataclass": "from dataclasses import dataclass\n@dataclass\nclass A:\n    a: int\nassert A(1).a == 1",
    "a temporary file": "import tempfile\nwith tempfile.NamedTemporaryFile('w') as file:\n    file.write('a')",
    "a temporary folder": "import tempfile\nwith tempfile.TemporaryDirectory() as place: open(place + '/a', 'w')",
    "copies": "import os, shutil\nos.mkdir('a')\nopen('b', 'w')\nshutil.copy2('b', 'a')\nshutil.move('a/b', 'c')",
    "a database": "import sqlite3\nsqlite3.connect(':memory:')\nsqlite3.connect('a').execute('create table b (c)')",
    "what only a start by hand does": "if __name__ == '__main__':\n    raise SystemExit(input())",
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
    "a signal by a descriptor": "import os, signal\nsignal.pidfd_send_signal(os.pidfd_open(os.getppid()), 0)",
    "a limit for its parent": "import os, resource\nresource.prlimit(os.getppid(), resource.RLIMIT_CORE)",
    "a processor for its parent": "import os\nos.sched_setaffinity(os.getppid(), os.sched_getaffinity(0))",
    "a priority for its parent": "import os\nos.setpriority(os.PRIO_PROCESS, os.getppid(), 0)",
    "a name that is only in an annotation": "def f(a: List[int]): return a",
    "many files": "for i in range(9):\n    open(str(i), 'wb').write(bytes(500_000))",
    "files without end": "i = 0\nwhile True:\n    open(str(i), 'wb').write(bytes(500_000))\n    i += 1",
    "a huge file": "open('a', 'wb').write(bytes(3_000_000))",
    "a recursion without end": "def f(): return f()\nf()",
    "leaving early": "import sys\nsys.exit(0)",
    "leaving at once": "import os\nos._exit(0)",
    "half a character": "x = '\ud800'\nraise ValueError",
}
CHANGES = (
    "open({0!r}, 'w')", "os.remove({0!r})", "os.rename({0!r}, 'b')", "os.open({0!r}, os.O_TRUNC)", "open({1!r}, 'w')",
    "os.open('new', os.O_CREAT | os.O_WRONLY, dir_fd=os.open({2!r}, os.O_RDONLY))", "os.mkfifo({1!r})",
    "os.mknod({1!r})", "sqlite3.connect({1!r}).execute('create table a (b)')",
    "sqlite3.connect('file:' + {1!r}, uri=True).execute('create table a (b)')",
    "os.fchmod(os.open({0!r}, os.O_RDONLY), 0o777)", "os.utime(os.open({0!r}, os.O_RDONLY), (1, 1))",
    "os.chown({0!r}, 0, 0)", "os.setxattr({0!r}, 'user.a', b'b')",
)  # fmt: skip
"""Programs that change a file outside: {0} is one that exists, {1} one that does not, {2} their folder."""


@pytest.mark.parametrize("program", FINE.values(), ids=FINE)
def test_what_runs_to_its_end_passes(program: str) -> None:
    assert runs(program, SMALL)


@pytest.mark.parametrize("program", BROKEN.values(), ids=BROKEN)
def test_what_does_not_run_to_its_end_fails(program: str) -> None:
    assert not runs(program, SMALL)


def test_files_outside_its_folder_stay_as_they_are(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("as it was")
    before = kept.stat()
    for change in CHANGES:
        program = change.format(str(kept), str(tmp_path / "new"), str(tmp_path))
        assert not runs("import os, sqlite3\n" + program, SMALL), change
    assert [path.name for path in tmp_path.iterdir()] == ["kept"] and kept.read_text() == "as it was"
    assert (kept.stat().st_mode, kept.stat().st_mtime_ns) == (before.st_mode, before.st_mtime_ns)


def test_the_environment_stays_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GISTGATE_SECRET", "a key")
    assert os.environ["GISTGATE_SECRET"]
    assert runs("import os\nassert 'GISTGATE_SECRET' not in os.environ and 'HOME' not in os.environ", SMALL)


def test_an_equal_program_has_an_equal_verdict() -> None:
    """The order of a set of texts is the same in every process."""
    program = "assert list({'ab', 'cd', 'ef', 'gh', 'ij'})[0] == 'VALUE'"
    found = [word for word in ("ab", "cd", "ef", "gh", "ij") if runs(program.replace("VALUE", word), SMALL)]
    assert len(found) == 1
