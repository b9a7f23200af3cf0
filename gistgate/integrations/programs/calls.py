"""The system calls that Linux refuses to a program, by a filter (seccomp) that nothing can take off again."""

from __future__ import annotations

import ctypes
import platform
import struct
import sys
from collections.abc import Collection

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
