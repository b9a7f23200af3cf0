"""A function of tensors as a program of fixed shape: traced once, compiled where possible, captured on a GPU.

Tracing runs the function on tensors without values. What it finds is a flat list of operations: hooks, modules,
dataclasses and the library around them have vanished, and code that looks at a value is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten

# ---- Where a traced graph repeats itself: the layers of a model are the same operations on other weights.


LIKE = "like"
"""Key of a node's `meta`: size, strides, dtype and device of its tensor, or None."""
FEWEST_TIMES, FEWEST_NODES = 3, 8
"""What repeats less often, or is shorter, is not worth a program of its own."""


def parts_of(graph: fx.Graph) -> list[list[fx.Node]]:
    """The graph's operations in order as what comes before, the repeated part again and again, and what comes after.

    An empty list where nothing repeats. The first and the last part may be empty.
    """
    nodes = [node for node in graph.nodes if node.op == "call_function"]
    start, length, times = repetition(numbered([signature(node) for node in nodes]))
    if times < FEWEST_TIMES:
        return []
    slack = len(nodes) - start - length * times
    shift = best_cut(nodes, start, length)
    times -= shift > slack
    start += shift
    ends = [start + length * turn for turn in range(times + 1)]
    repeated = [nodes[low:high] for low, high in pairwise(ends)]
    first = interface(repeated[0])
    same = [interface(part) == first for part in repeated]
    return [nodes[:start], *repeated, nodes[ends[-1] :]] if times >= FEWEST_TIMES and all(same) else []


def numbered(signatures: Sequence[Hashable]) -> Tensor:
    """The same number for the same signature [N]."""
    known: dict[Hashable, int] = {}
    return torch.tensor([known.setdefault(one, len(known)) for one in signatures])


def repetition(numbers: Tensor) -> tuple[int, int, int]:
    """(start, length, times) of the repetition in [N] that covers most; of several the one with the shortest length."""
    best, covered = (0, 0, 0), 0
    for length in range(FEWEST_NODES, len(numbers) // FEWEST_TIMES + 1):
        differs = (numbers[:-length] != numbers[length:]).nonzero().flatten()
        edges = torch.cat([torch.tensor([-1]), differs, torch.tensor([len(numbers) - length])])
        runs = edges.diff() - 1
        place = int(runs.argmax())
        times = (int(runs[place]) + length) // length
        if times >= FEWEST_TIMES and times * length > covered:
            best, covered = (int(edges[place]) + 1, length, times), times * length
    return best


def signature(node: fx.Node) -> Hashable:
    """What an operation does, without the tensors that it does it to."""
    leaves, structure = tree_flatten((node.args, node.kwargs))
    values = tuple("tensor" if isinstance(leaf, fx.Node) else repr(leaf) for leaf in leaves)
    return str(node.target), str(structure), values, node.meta.get(LIKE)


def read_by(node: fx.Node) -> list[fx.Node]:
    """The nodes among a node's arguments, in their order, as often as they stand there."""
    return [leaf for leaf in tree_flatten((node.args, node.kwargs))[0] if isinstance(leaf, fx.Node)]


def best_cut(nodes: Sequence[fx.Node], start: int, length: int) -> int:
    """How far to move the beginning, so that the least goes from one repetition to the next."""
    order = {node: place for place, node in enumerate(nodes)}

    def crossing(shift: int) -> float:
        cut = start + length + shift
        found = [
            node
            for node in nodes[start + shift : cut]
            if any(order.get(user, len(nodes)) >= cut for user in node.users)
        ]
        return len(found) if all(node.meta.get(LIKE) for node in found) else float("inf")

    return min(range(length), key=crossing)


def interface(part: Sequence[fx.Node]) -> Hashable:
    """How the operations of a part hang together, and what kind of tensors come from outside."""
    inside, outside = {node: place for place, node in enumerate(part)}, dict[fx.Node, int]()

    def named(read: fx.Node) -> tuple[bool, int]:
        return (True, inside[read]) if read in inside else (False, outside.setdefault(read, len(outside)))

    links = tuple(named(read) for node in part for read in read_by(node))
    return links, tuple(node.meta.get(LIKE) for node in outside)


# ---- A graph as programs that are called one after the other, the repeated ones with other weights each time.


Compile = Callable[[fx.GraphModule, Sequence[Tensor]], Callable[..., Any]]
"""(graph, tensors like its inputs) -> program."""


@dataclass(frozen=True)
class Call:
    """One call: what the program reads, and under which names its results are kept."""

    program: Callable[..., Any]
    reads: tuple[fx.Node, ...]
    writes: tuple[fx.Node, ...]


@dataclass(frozen=True)
class Chain:
    """All calls of a graph; a `Program`."""

    inputs: tuple[fx.Node, ...]
    constants: dict[fx.Node, Tensor]
    calls: tuple[Call, ...]
    outputs: tuple[fx.Node, ...]

    @cached_property
    def spent(self) -> list[list[fx.Node]]:
        """What nobody reads behind each call."""
        last = {node: number for number, call in enumerate(self.calls) for node in (*call.writes, *call.reads)}
        wanted = {*self.outputs, *self.inputs, *self.constants}
        return [
            [node for node, reader in last.items() if reader == number and node not in wanted]
            for number in range(len(self.calls))
        ]

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The graph's results for these inputs."""
        values = {**self.constants, **dict(zip(self.inputs, tensors, strict=True))}
        for number, call in enumerate(self.calls):
            results = call.program(*(values[node] for node in call.reads))
            values.update(zip(call.writes, results, strict=True))
            for node in self.spent[number]:  # long prompts make large tensors
                del values[node]
        return tuple(values[node] for node in self.outputs)


def chained(graph: fx.GraphModule, example: Sequence[Tensor], compile_part: Compile) -> Chain | None:
    """The graph as a chain in which what repeats is compiled once; None where nothing repeats."""
    parts = parts_of(graph.graph)
    held = [node for node in graph.graph.nodes if node.op == "get_attr"]
    handed = [node for part in parts for node in part if is_read_outside(node, part)]
    if not parts or not all(node.meta[LIKE] for node in (*held, *handed)):
        return None  # programs hand over nothing but tensors
    first, *repeated, last = parts
    inputs = tuple(node for node in graph.graph.nodes if node.op == "placeholder")
    constants = {node: constant(graph, node).detach() for node in held}
    known = {**constants, **dict(zip(inputs, example, strict=True))}
    # What one repetition gives to others or to the rest, all of them give: they are one program.
    given = sorted({place for part in repeated for place, node in enumerate(part) if is_read_outside(node, part)})

    def call(part: Sequence[fx.Node], writes: Sequence[fx.Node], program: Callable[..., Any] | None = None) -> Call:
        reads = reads_of(part)
        if program is None:
            likes = [known[node] if node in known else like(node) for node in reads]
            program = compile_part(module_of(part, reads, writes), likes)
        return Call(program, tuple(reads), tuple(writes))

    calls = [call(first, [node for node in first if is_read_outside(node, first)])] if first else []
    for part in repeated:
        again = calls[-1].program if part is not repeated[0] else None
        calls.append(call(part, [part[place] for place in given], again))
    if last:
        calls.append(call(last, [node for node in last if is_read_outside(node, last)]))
    (outputs,) = (node.args[0] for node in graph.graph.nodes if node.op == "output")
    return Chain(inputs, constants, tuple(calls), tuple(outputs))


def is_read_outside(node: fx.Node, part: Sequence[fx.Node]) -> bool:
    """Whether somebody outside of the part reads this node of it."""
    return any(user not in part for user in node.users)


def reads_of(part: Sequence[fx.Node]) -> list[fx.Node]:
    """What a part reads from outside, in the order in which it is met."""
    inside = set(part)
    return list(dict.fromkeys(read for node in part for read in read_by(node) if read not in inside))


def module_of(part: Sequence[fx.Node], reads: Sequence[fx.Node], writes: Sequence[fx.Node]) -> fx.GraphModule:
    """The operations of a part as a graph of its own."""
    graph = fx.Graph()
    copies = {node: graph.placeholder(f"read_{number}") for number, node in enumerate(reads)}
    for node in part:
        copies[node] = graph.node_copy(node, lambda read: copies[read])
        copies[node].meta = {}
    graph.output(tuple(copies[node] for node in writes))
    return fx.GraphModule({}, graph)


def constant(graph: fx.GraphModule, node: fx.Node) -> Any:
    """What a node of the graph holds, such as a weight."""
    return attrgetter(str(node.target))(graph)


def like(node: fx.Node) -> Tensor:
    """An empty tensor such as the node gives."""
    size, strides, dtype, device = node.meta[LIKE]
    return torch.empty_strided(size, strides, dtype=dtype, device=device)


Program = Callable[..., tuple[Tensor, ...]]
"""Tensors of the shapes that it was built for -> tensors."""


HEAVY = 1 << 28
"""Bytes of weights whose reading takes a processor so long that the calls of kernels cost nothing beside it."""


class UnsupportedError(Exception):
    """This function cannot become a program; the message is the part of a sentence that says why."""


def build(function: Callable[..., tuple[Tensor, ...]], example: Sequence[Tensor], compiles: bool) -> Program:
    """Trace `function` for tensors like `example`, and compile it.

    Raises:
        UnsupportedError: its operations depend on values, or the compiler refuses.
    """
    with torch.inference_mode(False), torch.no_grad():
        graph = trace(function, example)
        if not compiles:
            return graph
        if num_bytes([*graph.parameters(), *graph.buffers()]) < HEAVY:
            return compiled(graph, example, small=True)
        return chained(graph, example, compiled) or compiled(graph, example)


def trace(function: Callable[..., tuple[Tensor, ...]], example: Sequence[Tensor]) -> fx.GraphModule:
    """The operations of `function` as a graph module."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        # Without values nothing is written into the memory that the example brings along, and no branch can be taken
        # that another round would not take.
        fakes = [mode.from_tensor(tensor) for tensor in example]
        with mode:
            graph: fx.GraphModule = make_fx(function, _allow_non_fake_inputs=True)(*fakes)
    except UnsupportedError:
        raise
    except Exception as error:  # whatever a model or a rule does that a graph cannot hold
        raise UnsupportedError(f"it cannot be traced ({first_line(error)})") from error
    for node in graph.graph.nodes:  # leave no other tensor of the tracing behind: the compiler begins its own
        value = constant(graph, node) if node.op == "get_attr" else node.meta.get("val")
        node.meta = {LIKE: like_of(value)}
    return graph


def like_of(value: Any) -> tuple[Any, ...] | None:
    """Size, strides, dtype and device of a tensor; None of anything else."""
    if not isinstance(value, Tensor):
        return None
    return tuple(value.shape), value.stride(), value.dtype, value.device


def compiled(graph: fx.GraphModule, example: Sequence[Tensor], small: bool = False) -> Program:
    """The graph as machine code; small ones are called from C++ on a processor.

    That spares the interpreter between small kernels. Where kernels read many weights it saves nothing, and compiling
    the calls would take most of the time.
    """
    import torch._inductor as inductor

    on_cpu = all(tensor.device.type == "cpu" for tensor in example)
    options: dict[str, Any] = {"cpp_wrapper": True} if on_cpu and small else {}
    try:
        program: Program = inductor.compile(graph, list(example), options=options)
    except Exception as error:
        raise UnsupportedError(f"it cannot be compiled ({first_line(error)})") from error
    return program


def num_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of all of them."""
    return sum(tensor.nbytes for tensor in tensors)


def missing_compiler(device: torch.device) -> str | None:
    """What keeps this machine from compiling for `device`; None when nothing does."""
    if device.type == "cuda":
        from torch.utils._triton import has_triton

        return None if has_triton() else "Triton is not installed"
    try:
        from torch._inductor.cpp_builder import get_cpp_compiler

        get_cpp_compiler()
    except Exception:
        return "there is no C++ compiler"
    return None


def first_line(error: BaseException) -> str:
    """The beginning of an error's message, fit for half a sentence."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:160]}".rstrip(": .")


@contextmanager
def own_workspaces() -> Iterator[None]:
    """Matrix products inside take their scratch memory anew, so that a graph keeps what it recorded.

    PyTorch shares this memory among all that runs on a stream, and its own graphs give it back: a graph that had
    recorded the shared one would write into memory of somebody else. For the same reason no other thread may work on a
    GPU meanwhile.
    """
    torch._C._cuda_clearCublasWorkspaces()
    try:
        yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()


class Captured:
    """A program whose kernels a CUDA graph replays: one launch instead of hundreds.

    Memory that the program writes (`fixed`) is used where it lies; everything else is copied into the graph's own
    buffers before a replay. What it returns is overwritten by the next replay.
    """

    warm_ups = 3
    """Runs before the capture, so that libraries have allocated and tuned what they need."""

    def __init__(self, program: Program, fixed: Sequence[Tensor], example: Sequence[Tensor]) -> None:
        """Run the program a few times, then record it; what lies in `fixed` afterwards is of no interest.

        Raises:
            UnsupportedError: it does something that cannot be recorded.
        """
        self.program = program  # the graph reads its constants where they lie, so that they have to live on
        self.fixed = list(fixed)
        self.inputs = [tensor.clone() for tensor in example]
        self.device = self.inputs[0].device  # the current one may be another
        try:
            with torch.cuda.device(self.device):
                self._record()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise UnsupportedError(f"it cannot be captured ({first_line(error)})") from error

    def _record(self) -> None:
        self.graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(self.warm_ups):
                self.program(*self.fixed, *self.inputs)
        torch.cuda.current_stream().wait_stream(stream)
        with own_workspaces(), torch.cuda.graph(self.graph, stream=stream):
            self.outputs = self.program(*self.fixed, *self.inputs)

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Replay for `fixed` (already known, skipped) and fresh inputs."""
        for held, fresh in zip(self.inputs, tensors[len(self.fixed) :], strict=True):
            held.copy_(fresh, non_blocking=True)
        with torch.cuda.device(self.device):
            self.graph.replay()
        return self.outputs
