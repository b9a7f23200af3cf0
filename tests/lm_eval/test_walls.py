"""Each wall around a program holds alone: the kernel's filter, its rule for files, and the hook where both lack."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gistgate.lm_eval.child import CALLS, CONTROL, LIMITS, PROCESSORS, Hook

ROOT = Path(__file__).parents[2]
HEADERS = ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm-generic/unistd.h")
"""Where Linux lists its calls, in the order of PROCESSORS; ARM has the general list."""
NO_FILTER = sys.platform != "linux" or platform.machine() not in PROCESSORS

FILTERED = {
    "a signal by a descriptor": "signal.pidfd_send_signal(os.pidfd_open(os.getppid()), 0)",
    "a limit for its parent": "resource.prlimit(os.getppid(), resource.RLIMIT_CORE)",
    "a signal from a file": "fcntl.fcntl(0, fcntl.F_SETOWN, os.getppid())",
    "another program": "os.execv('/bin/true', ['true'])",
    "an owner": "os.chown('.', os.getuid(), os.getgid())",
    "a pipe with a name": "os.mknod('a', 0o600 | stat.S_IFIFO)",
    "a call in another form": "called(0x40000000 + 39)",
    "memory of its parent": "called(CALLS['process_vm_writev'][PLACE], os.getppid(), 0, 0, 0, 0, 0)",
    "a queue of calls": "called(CALLS['io_uring_setup'][PLACE], 1, 0)",
}
GUARDED = {
    "a new file": "open(PLACE + '/new', 'w')",
    "a file through a folder": "os.open('new', os.O_CREAT | os.O_WRONLY, dir_fd=os.open(PLACE, os.O_RDONLY))",
    "a pipe with a name": "os.mkfifo(PLACE + '/new')",
    "a database": "sqlite3.connect(PLACE + '/new').execute('create table a (b)')",
    "an attached database": "sqlite3.connect(':memory:').execute('attach ? as a', [PLACE + '/new'])",
    "a file moved away": "os.rename(PLACE + '/kept', 'a')",
    "a file removed": "os.remove(PLACE + '/kept')",
    "the memory of its parent": "open(f'/proc/{os.getppid()}/mem')",
    "memory with a name": "_posixshmem.shm_open('/gistgate-walls', os.O_CREAT | os.O_RDWR, 0o600)",
}
ABSENT = 77
"""Exit status where the kernel has no such wall."""


def refused(folder: Path, wall: str, program: str) -> bool:
    """Whether a program behind one wall alone ends with a PermissionError; the test is skipped where the wall lacks."""
    text = f"""
import ctypes, errno, fcntl, os, resource, signal, sqlite3, stat, sys
import _posixshmem
from gistgate.lm_eval.child import CALLS, refuse_calls
from gistgate.lm_eval.child import keep_changes_in

def called(*arguments):
    if ctypes.CDLL(None, use_errno=True).syscall(*arguments) < 0 and ctypes.get_errno() == errno.EPERM:
        raise PermissionError

if not {wall}:
    sys.exit({ABSENT})
try:
    {program}
except PermissionError:
    sys.exit(3)
except sqlite3.OperationalError as error:
    sys.exit(3 if "unable to open" in str(error) else 1)
"""
    code = subprocess.run([sys.executable, "-c", text], cwd=folder, env={"PYTHONPATH": str(ROOT)}).returncode
    if code == ABSENT:
        pytest.skip("this kernel lacks the wall")
    return code == 3


@pytest.mark.skipif(NO_FILTER, reason="there is no filter for this system")
@pytest.mark.parametrize("program", FILTERED.values(), ids=FILTERED)
def test_the_filter_alone_refuses_what_reaches_other_processes(tmp_path: Path, program: str) -> None:
    place = list(PROCESSORS).index(platform.machine())
    assert refused(tmp_path, "refuse_calls()", program.replace("PLACE", str(place)))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(NO_FILTER, reason="there is no filter for this system")
def test_the_filter_allows_limits_and_control_of_its_own(tmp_path: Path) -> None:
    assert not refused(tmp_path, "refuse_calls()", "resource.prlimit(0, resource.RLIMIT_CORE, (0, 0))")
    assert not refused(tmp_path, "refuse_calls()", "fcntl.fcntl(0, fcntl.F_GETFD)")


@pytest.mark.parametrize("program", GUARDED.values(), ids=GUARDED)
def test_the_rule_alone_keeps_the_program_in_its_folder(tmp_path: Path, program: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("as it was")
    (inside := tmp_path / "inside").mkdir()
    assert refused(inside, "keep_changes_in('.')", program.replace("PLACE", repr(str(outside))))
    assert [path.name for path in outside.iterdir()] == ["kept"] and (outside / "kept").read_text() == "as it was"


def test_the_rule_leaves_the_folder_and_nowhere_free(tmp_path: Path) -> None:
    program = "os.mkdir('a'); open('b', 'w').close(); os.rename('b', 'a/b'); os.remove('a/b'); open(os.devnull, 'w')"
    assert not refused(tmp_path, "keep_changes_in('.')", program)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("place, header", enumerate(HEADERS), ids=PROCESSORS)
def test_calls_have_the_numbers_of_the_system(place: int, header: str) -> None:
    if not Path(header).is_file():
        pytest.skip("this system has no such list")
    found = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", Path(header).read_text())
    listed = {name: int(number) for name, number in found}
    ours = {name: numbers[place] for name, numbers in CALLS.items() if place < len(numbers)}
    ours |= {"prlimit64": LIMITS[place], "fcntl": CONTROL[place]}
    newer = {"setxattrat", "removexattrat"} - listed.keys()
    assert {name: listed.get(name) for name in ours if name not in newer} == {
        name: number for name, number in ours.items() if name not in newer
    }
    assert not place or not {name for name, numbers in CALLS.items() if len(numbers) == 1} & listed.keys()


def test_the_hook_alone_refuses_processes_sockets_and_changes(tmp_path: Path) -> None:
    """What stands where the kernel has neither; the hook is called by hand, because it can never be removed."""
    hook, outside = Hook(str(tmp_path)), str(tmp_path.parent)
    hook("open", (str(tmp_path / "a"), "w", os.O_WRONLY))
    hook("open", ("/etc/hostname", "r", os.O_RDONLY))
    hook("sqlite3.connect", (":memory:",))
    hook("sqlite3.connect", (str(tmp_path / "a"),))
    hook("os.truncate", (3, 0))
    for event, arguments in (
        ("os.fork", ()), ("subprocess.Popen", ("true",)), ("socket.connect", (None, None)), ("os.kill", (1, 9)),
        ("open", (f"{outside}/a", "w", os.O_WRONLY)), ("os.rename", ("a", str(tmp_path / "../a"))),
        ("open", (outside, None, os.O_RDONLY)), ("open", (str(tmp_path), None, os.O_RDONLY)),
        ("sqlite3.connect", (f"{outside}/a",)), ("sqlite3.connect", (f"file:{outside}/a",)),
        ("os.chmod", (3, 0o777, -1)), ("os.utime", (3, None, None, -1)), ("os.setxattr", ("/etc", "user.a", b"", 0)),
        ("resource.prlimit", (1, 4, None)), ("fcntl.fcntl", (3, 8, 1)),
    ):  # fmt: skip
        with pytest.raises(PermissionError):
            hook(event, arguments)
