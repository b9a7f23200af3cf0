"""The process of one program: `gistgate.lm_eval.code_tasks` starts this file and nothing imports it.

    python child.py SECONDS MEMORY_MB FILE_MB    standard input: a secret in the first line, then the program

The secret goes back over standard output if and only if the program runs to its end; leaving early says nothing. Four
walls stand around the program: resource limits of the system; on Linux a filter of system calls that refuses processes,
threads, sockets and signals (`calls.py`); there, too, a rule that keeps changes of files in the working directory
(`landlock.py`); and a hook in Python that refuses the same (`hook.py`). The hook can be circumvented by somebody who
wants to; what the kernel holds cannot.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import struct
import sys
from collections.abc import Collection
from pathlib import Path
from types import ModuleType
from typing import Any

# ---- The system calls that Linux refuses to a program, by a filter (seccomp) that nothing can take off again.


PROCESSORS = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""Numbers of processors in the filter, in the order of the numbers below."""
CALLS: dict[str, tuple[int, ...]] = {
    # processes and connections
    "clone": (56, 220), "clone3": (435, 435), "fork": (57,), "vfork": (58,), "execve": (59, 221),
    "execveat": (322, 281), "socket": (41, 198), "socketpair": (53, 199),
    # signals
    "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424),
    "pidfd_getfd": (438, 438),
    # memory, priorities and processors of other processes
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "process_madvise": (440, 440), "process_mrelease": (448, 448), "move_pages": (279, 239),
    "migrate_pages": (256, 238), "kcmp": (312, 272), "setpriority": (141, 140), "ioprio_set": (251, 30),
    "sched_setaffinity": (203, 122), "sched_setscheduler": (144, 119), "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
    # ways around a filter, or into the kernel
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "bpf": (321, 280),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    # memory, queues and keys that outlive a process
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "semget": (64, 190), "semop": (65, 193),
    "semtimedop": (220, 192), "semctl": (66, 191), "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188),
    "msgctl": (71, 187), "mq_open": (240, 180), "mq_unlink": (241, 181), "add_key": (248, 217),
    "request_key": (249, 218), "keyctl": (250, 219),
    # files that are none, owners and attributes
    "mknod": (133,), "mknodat": (259, 33), "chown": (92,), "fchown": (93, 55), "lchown": (94,), "fchownat": (260, 54),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "setxattrat": (463, 463),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16), "removexattrat": (466, 466),
    "open_by_handle_at": (304, 265),
    # the system, where the user is root
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "unshare": (272, 97),
    "setns": (308, 268), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsmount": (432, 432), "mount_setattr": (442, 442), "reboot": (169, 142), "init_module": (175, 105),
    "finit_module": (313, 273), "delete_module": (176, 106), "kexec_load": (246, 104), "kexec_file_load": (320, 294),
    "swapon": (167, 224), "swapoff": (168, 225), "settimeofday": (164, 170), "clock_settime": (227, 112),
    "adjtimex": (159, 171), "clock_adjtime": (305, 266), "sethostname": (170, 161), "setdomainname": (171, 162),
}  # fmt: skip
"""Refused calls with their numbers by processor; ARM lacks some."""
LIMITS, CONTROL = (302, 261), (72, 25)
"""The calls `prlimit64`, which may limit its own process only, and `fcntl`, which may not say whom a file signals."""
OWNERS = (8, 15)
"""The commands of `fcntl` that would say it: F_SETOWN and F_SETOWN_EX."""
FOREIGN = 0x40000000
"""Where numbers of calls in another form begin (x32), which the table does not know."""

LOAD, EQUAL, AT_LEAST, SKIP, ANSWER = 0x20, 0x15, 0x35, 0x05, 0x06
"""Instructions of a Berkeley packet filter."""
NUMBER, PROCESSOR, ARGUMENTS = 0, 4, 16
"""Where the filter finds the number of a call, the processor, and the arguments of eight bytes each."""
REFUSED, ALLOWED = 0x00050001, 0x7FFF0000
"""Answers of the filter: the error EPERM, and to go on."""
Steps = list[tuple[int, int, int, int]]
"""Instructions: what, how many to skip where it is so, how many where it is not, and a value."""


def refuse_calls() -> bool:
    """Let the kernel refuse the calls of CALLS from now on; False where it cannot."""
    if platform.machine() not in PROCESSORS or sys.platform != "linux":
        return False
    steps = instructions(platform.machine())
    code = b"".join(struct.pack("HBBI", *step) for step in steps)
    buffer = ctypes.create_string_buffer(code, len(code))
    filter_ = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(buffer))
    call = ctypes.CDLL(None).prctl
    no_new_privileges, seccomp, mode = 38, 22, 2
    return bool(call(no_new_privileges, 1, 0, 0, 0) == 0 and call(seccomp, mode, filter_, 0, 0) == 0)


def instructions(machine: str) -> Steps:
    """The filter for a processor of PROCESSORS."""
    place = list(PROCESSORS).index(machine)
    calls = [numbers[place] for numbers in CALLS.values() if place < len(numbers)]
    return [
        (LOAD, 0, 0, PROCESSOR),
        (EQUAL, 1, 0, PROCESSORS[machine]),
        (ANSWER, 0, 0, REFUSED),
        (LOAD, 0, 0, NUMBER),
        (AT_LEAST, 0, 1, FOREIGN),
        (ANSWER, 0, 0, REFUSED),
        *among(calls, REFUSED),
        *by_argument(LIMITS[place], 0, [*among([0], ALLOWED), (ANSWER, 0, 0, REFUSED)]),
        *by_argument(CONTROL[place], 1, [*among(OWNERS, REFUSED), (ANSWER, 0, 0, ALLOWED)]),
        (ANSWER, 0, 0, ALLOWED),
    ]


def among(values: Collection[int], answer: int) -> Steps:
    """Answer if the loaded value is one of these, else go on behind."""
    steps = [(EQUAL, len(values) - place, 0, value) for place, value in enumerate(values)]
    return [*steps, (SKIP, 0, 0, 1), (ANSWER, 0, 0, answer)]


def by_argument(call: int, argument: int, steps: Steps) -> Steps:
    """For one call, load the lower half of an argument and let `steps` answer."""
    return [(EQUAL, 0, len(steps) + 1, call), (LOAD, 0, 0, ARGUMENTS + 8 * argument), *steps]


# ---- The hook that refuses audit events of Python: starting something, reaching out, and changes outside a folder.


REFUSED_HOOK = (
    "os.fork", "os.posix_spawn", "os.system", "os.exec", "os.kill", "os.spawn", "subprocess.", "socket.", "pty.",
    "ctypes.", "signal.pthread_kill", "resource.prlimit", "fcntl.fcntl", "fcntl.ioctl",
)  # fmt: skip
"""Beginnings of Python's audit events that no program may cause."""
CHANGES = (
    "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod", "os.chown",
    "os.chflags", "os.utime", "os.setxattr", "shutil.", "tempfile.",
)  # fmt: skip
"""Beginnings of audit events whose arguments are paths that are about to change."""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Hook:
    """Refuses audit events of Python by raising."""

    def __init__(self, folder: str) -> None:
        """`folder` is the only place where files may change."""
        self.folder = folder + os.sep

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event.startswith(REFUSED_HOOK):
            raise PermissionError(f"{event} is not allowed here")
        if event == "open":
            self.check_open(*arguments)
        elif event == "sqlite3.connect":
            self.check_database(os.fsdecode(arguments[0]))
        elif event.startswith(CHANGES):
            self.check_change(event, arguments)

    def check_open(self, path: Any, mode: str | None, flags: Any) -> None:
        """Refuse to write outside, and descriptors of folders.

        Only `os.open`, which has no mode, makes those. Paths relative to one are not told apart from other paths here.
        """
        if isinstance(flags, int) and flags & WRITING:
            self.check(path)
        if mode is None and not isinstance(path, int) and Path(os.fsdecode(path)).is_dir():
            raise PermissionError(f"{path!r} is a folder, and folders are not opened here")

    def check_database(self, name: str) -> None:
        """Refuse a database outside the folder, and one that is named by an address."""
        if name.startswith("file:"):
            raise PermissionError("Databases are opened by their paths here")
        if name != ":memory:":
            self.check(name)

    def check_change(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Refuse changes outside, and those by a descriptor, which a file that is only read has as well."""
        if isinstance(arguments[0], int) and event != "os.truncate":
            raise PermissionError(f"{event} is not allowed by a descriptor here")
        for argument in arguments:
            self.check(argument)

    def check(self, path: Any) -> None:
        """Refuse a path outside the folder."""
        if isinstance(path, str | bytes | os.PathLike):
            place = os.path.realpath(os.fsdecode(path))
            if not (place + os.sep).startswith(self.folder) and place != os.devnull:
                raise PermissionError(f"{place} lies outside the working directory")


# ---- Linux keeps a program from changing what lies outside its folder (Landlock), and nothing can undo that.


CREATE, ADD, RESTRICT = 444, 445, 446
"""System calls, with the same numbers on every processor."""
WRITE, TRUNCATE, CONTROL_LANDLOCK = 1 << 1, 1 << 14, 1 << 15
"""Rights that a file can have on its own: to be written, truncated, and controlled where it is a device."""
RIGHTS = ((1, WRITE | 0x1FF0), (2, 1 << 13), (3, TRUNCATE), (5, CONTROL_LANDLOCK))
"""Rights by the version that knows them first: writing, removing and making files of every kind; moving; the others."""
SCOPES = ((6, 0b11),)
"""Sockets without a file, and signals."""


def keep_changes_in(folder: str) -> bool:
    """Let the kernel refuse changes outside `folder` from now on; False where it cannot."""
    if sys.platform != "linux":
        return False
    version = call(CREATE, None, 0, 1)
    handled, scoped = (known(table, version) for table in (RIGHTS, SCOPES))
    rules = call(CREATE, struct.pack("QQQ", handled, 0, scoped), 24, 0)
    if rules < 0:  # no Landlock, which has no rights either
        return False
    allow(rules, folder, handled)
    allow(rules, os.devnull, handled & (WRITE | TRUNCATE | CONTROL_LANDLOCK))
    no_new_privileges = 38
    ctypes.CDLL(None).prctl(no_new_privileges, 1, 0, 0, 0)
    restricted = call(RESTRICT, rules, 0) == 0
    os.close(rules)
    return restricted


def known(table: tuple[tuple[int, int], ...], version: int) -> int:
    """The bits that this version knows."""
    return sum(bits for since, bits in table if since <= version)


def allow(rules: int, path: str, rights: int) -> None:
    """Allow these rights for a file, or for a folder and all in it."""
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    call(ADD, rules, 1, struct.pack("=Qi", rights, place), 0)
    os.close(place)


def call(*arguments: int | bytes | None) -> int:
    """A system call by its number; -1 where it fails."""
    return int(ctypes.CDLL(None).syscall(*arguments))


# The interpreter runs without this file's folder on its path, so that programs cannot import what lies beside it.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


del sys.path[0]


def main() -> None:
    seconds, memory, size = map(int, sys.argv[1:])
    secret, program = sys.stdin.buffer.readline(), sys.stdin.buffer.read()
    channel = os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    sys.argv = ["program"]
    limit(seconds, memory << 20, size << 20)
    confine(os.path.realpath("."))
    # Not `__main__`: what a program does when it is started by hand is no part of the answer.
    module = sys.modules["program"] = ModuleType("program")
    try:
        exec(compile(program, "program", "exec", dont_inherit=True), module.__dict__)
    except BaseException:  # whatever it is, sys.exit included, the program has not run to its end
        os._exit(1)
    os.write(channel, secret)
    os._exit(0)


def limit(seconds: int, memory: int, size: int) -> None:
    """Limit processor time, memory, processes and sizes of files, as far as the system knows them."""
    limits = {"CPU": seconds, "AS": memory, "FSIZE": size, "NPROC": 0, "NOFILE": 64, "CORE": 0}
    for name, most in limits.items():
        kind = getattr(resource, f"RLIMIT_{name}", None)
        if kind is not None:
            hard = resource.getrlimit(kind)[1]
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            try:
                resource.setrlimit(kind, (most, most))
            except (OSError, ValueError):
                continue  # macOS refuses a limit of memory


def confine(folder: str) -> None:
    """Put up the walls: `folder` is where files may change."""
    refuse_calls()
    keep_changes_in(folder)
    os.supports_dir_fd.clear()  # the hook opens no folder, so that shutil has to remove trees by their paths
    sys.addaudithook(Hook(folder))


if __name__ == "__main__":
    main()
