"""Programs of a model run to their end or fail; and none has the environment of its caller."""

import os

import pytest

from gistgate.tasks import code as code_tasks
from gistgate.tasks.code import runs


@pytest.fixture(autouse=True)
def small(monkeypatch):
    for name, most in (("SECONDS", 1), ("MEMORY_MB", 512), ("FILE_MB", 1)):
        monkeypatch.setattr(code_tasks, name, most)


FINE = {
    "a passing test": "def double(x):\n    return 2 * x\nassert double(3) == 6",
    "much printing": "import sys\nprint('x' * 1_000_000)\nprint('y', file=sys.stderr)",
    "a file in its own folder": (
        "import os\nassert os.listdir() == []\nopen('a', 'w').write('b')\nos.remove('a')"
    ),
    "a dataclass": (
        "from dataclasses import dataclass\n@dataclass\nclass A:\n    a: int\nassert A(1).a == 1"
    ),
    "a temporary folder": (
        "import tempfile\nwith tempfile.TemporaryDirectory() as place: open(place + '/a', 'w')"
    ),
    "what only a start by hand does": "if __name__ == '__main__':\n    raise SystemExit(input())",
    "closed input": "import sys\nassert sys.stdin is None or sys.stdin.read() == ''",
}
BROKEN = {
    "a failing test": "assert 1 + 1 == 3",
    "no Python": "def (",
    "an infinite loop": "while True: pass",
    "a sleep": "import time\ntime.sleep(1000)",
    "a memory bomb": "kept = []\nwhile True: kept.append('x' * 1_000_000)",
    "a name that is only in an annotation": "def f(a: List[int]): return a",
    "a huge file": "open('a', 'wb').write(bytes(3_000_000))",
    "leaving early": "import sys\nsys.exit(0)",
    "leaving at once": "import os\nos._exit(0)",
    "half a character": "x = '\ud800'\nraise ValueError",
}


@pytest.mark.parametrize("program", FINE.values(), ids=FINE)
def test_what_runs_to_its_end_passes(program):
    assert runs(program)


@pytest.mark.parametrize("program", BROKEN.values(), ids=BROKEN)
def test_what_does_not_run_to_its_end_fails(program):
    assert not runs(program)


def test_the_environment_stays_here(monkeypatch):
    monkeypatch.setenv("GISTGATE_SECRET", "a key")
    assert os.environ["GISTGATE_SECRET"]
    assert runs(
        "import os\nassert 'GISTGATE_SECRET' not in os.environ and 'HOME' not in os.environ"
    )


def test_an_equal_program_has_an_equal_verdict():
    """The order of a set of texts is the same in every process."""
    program = "assert list({'ab', 'cd', 'ef', 'gh', 'ij'})[0] == 'VALUE'"
    found = [
        word for word in ("ab", "cd", "ef", "gh", "ij") if runs(program.replace("VALUE", word))
    ]
    assert len(found) == 1
