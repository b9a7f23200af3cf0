"""A function of tensors as a program of fixed shape: traced once, compiled where possible, captured
on a GPU.

The layers of a large model are compiled once and called with the weights of each. `torch.compile`
of each layer would enter its runtime once per layer and step: with a target of 20M parameters a
strict round takes 1.9 times as long.
"""

from collections.abc import Callable, Iterable, MutableMapping, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx

from gistgate.core.utils import first_line

aten = torch.ops.aten
Program = Callable[
    ..., tuple[Tensor, ...]
]  # tensors of the shapes that it was built for -> tensors
HEAVY = (
    1 << 28
)  # bytes of weights whose reading takes a processor so long that calling kernels costs nothing
FEWEST_LAYERS = 3  # fewer are compiled together with the rest
# Keys of a node's `meta`: size, strides, dtype and device of its tensor, or None; the part that it
# belongs to.
LIKE = "like"
PART = "part"


class UnsupportedError(Exception):
    """This function cannot become a program; the message is the part of a sentence that says
    why.
    """


def build(
    function: Program,
    example: Sequence[Tensor],
    *,
    layers: Sequence[nn.Module],
    compiles: bool,
    known: MutableMapping[str, Program],
) -> Program:
    """Trace and compile `function` for tensors like `example`, or raise `UnsupportedError`;
    `known`: shared parts.
    """
    with torch.inference_mode(False), torch.no_grad():
        graph = trace(function, example, layers)
        if example[0].device.type == "cuda":
            join_products(graph)
        if not compiles:
            return graph
        if num_bytes([*graph.parameters(), *graph.buffers()]) < HEAVY:
            return compiled(graph, example, small=True)
        return chained(graph, example, known) or compiled(graph, example)


def trace(
    function: Program, example: Sequence[Tensor], layers: Sequence[nn.Module] = ()
) -> fx.GraphModule:
    """The operations of `function` as a graph module; a new part begins before and behind each of
    `layers`.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    part = 0

    def cut(*_: Any) -> None:
        nonlocal part
        for node in reversed(get_proxy_mode().tracer.graph.nodes):  # type: ignore[union-attr]
            if PART in node.meta:
                break
            node.meta[PART] = part
        part += 1

    hooks = [layer.register_forward_pre_hook(cut) for layer in layers]
    hooks += [layer.register_forward_hook(cut) for layer in layers]
    try:
        # Without values nothing is written into the memory that the example brings along, and no
        # branch can be taken that another round would not take.
        fakes = [mode.from_tensor(tensor) for tensor in example]
        with mode:
            graph: fx.GraphModule = make_fx(function, _allow_non_fake_inputs=True)(*fakes)
    except UnsupportedError:
        raise
    except Exception as error:  # whatever a model or a rule does that a graph cannot hold
        raise UnsupportedError(f"it cannot be traced ({first_line(error)})") from error
    finally:
        for hook in hooks:
            hook.remove()
    for node in (
        graph.graph.nodes
    ):  # leave no other tensor of the tracing behind: the compiler begins its own
        value = constant(graph, node) if node.op == "get_attr" else node.meta.get("val")
        like = (
            (tuple(value.shape), value.stride(), value.dtype, value.device)
            if isinstance(value, Tensor)
            else None
        )
        node.meta = {LIKE: like, PART: node.meta.get(PART, part)}
    return graph


def constant(graph: fx.GraphModule, node: fx.Node) -> Any:
    """What a node of the graph holds, such as a weight."""
    return attrgetter(str(node.target))(graph)


def join_products(graph: fx.GraphModule) -> None:
    """Join the weights of products that read the same tensor: a GPU reads a small one no faster
    than a large one.
    """
    groups: dict[object, list[Any]] = {}
    nodes: list[Any] = list(graph.graph.nodes)
    for node in nodes:
        if node.target in (aten.mm.default, aten.addmm.default):
            *bias, x, weight = node.args
            held = [*bias, *weight.all_input_nodes[:1]]
            if weight.target is aten.t.default and all(one.op == "get_attr" for one in held):
                same = (x.target, x.args) if x.target is aten.view.default else x
                groups.setdefault((node.target, same, node.meta[PART]), []).append(node)
    for number, group in enumerate(group for group in groups.values() if len(group) > 1):
        first = group[0]
        *biases, weights = zip(
            *[(*node.args[:-2], node.args[-1].args[0]) for node in group], strict=True
        )
        with graph.graph.inserting_before(first):
            args = [
                held_jointly(graph, part, f"joined_{number}_{place}")
                for place, part in enumerate([*biases, weights])
            ]
            x = first.args[-2]
            weight = graph.graph.call_function(aten.t.default, (args[-1],))
            product = graph.graph.call_function(first.target, (*args[:-1], x, weight))
            start = 0
            for node, held in zip(group, weights, strict=True):
                end = start + held.meta[LIKE][0][0]
                part = graph.graph.call_function(aten.slice.Tensor, (product, 1, start, end))
                part.meta = dict(node.meta)
                start = end
                node.replace_all_uses_with(part)
        product.meta = weight.meta = {LIKE: None, PART: first.meta[PART]}
    graph.graph.eliminate_dead_code()
    graph.recompile()


def held_jointly(graph: fx.GraphModule, nodes: Sequence[Any], name: str) -> fx.Node:
    """A node for the tensors of these nodes one behind the other; they become views of it, unless
    they are already.
    """
    tensors = [constant(graph, node) for node in nodes]
    size = sum(map(len, tensors))
    first = tensors[0]
    ends = [one.storage_offset() + one.numel() for one in tensors]
    if all(
        one.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        and one.storage_offset() == end
        for one, end in zip(tensors[1:], ends, strict=False)
    ):
        whole = first.as_strided((size, *first.shape[1:]), first.stride(), first.storage_offset())
    else:
        whole = torch.cat(tensors)
        for one, part in zip(tensors, whole.split([len(one) for one in tensors]), strict=True):
            one.data = part
    graph.register_buffer(name, whole)
    node = graph.graph.get_attr(name)
    node.meta = {
        LIKE: (tuple(whole.shape), whole.stride(), whole.dtype, whole.device),
        PART: nodes[0].meta[PART],
    }
    return node


def compiled(graph: fx.GraphModule, example: Sequence[Tensor], small: bool = False) -> Program:
    """The graph as machine code; on a processor small ones, where it pays, are called from C++."""
    import torch._inductor as inductor

    on_cpu = all(tensor.device.type == "cpu" for tensor in example)
    options = {"cpp_wrapper": True} if on_cpu and small else {}
    try:
        program: Program = inductor.compile(graph, list(example), options=options)
    except Exception as error:
        raise UnsupportedError(f"it cannot be compiled ({first_line(error)})") from error
    return program


class Chain:
    """A graph as programs that are called one after the other; a `Program`."""

    def __init__(
        self,
        inputs: Sequence[fx.Node],
        constants: dict[fx.Node, Tensor],
        outputs: Sequence[fx.Node],
    ) -> None:
        self.inputs = inputs
        self.constants = constants
        self.outputs = outputs
        # (program, nodes that it reads, nodes that it gives, nodes that nobody needs behind it)
        self.calls: list[tuple[Program, list[fx.Node], list[fx.Node], list[fx.Node]]] = []

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        values = {**self.constants, **dict(zip(self.inputs, tensors, strict=True))}
        for program, reads, gives, spent in self.calls:
            values.update(zip(gives, program(*(values[node] for node in reads)), strict=True))
            for node in spent:  # long prompts make large tensors
                del values[node]
        return tuple(values[node] for node in self.outputs)


def chained(
    graph: fx.GraphModule, example: Sequence[Tensor], known: MutableMapping[str, Program]
) -> Chain | None:
    """The graph as a chain in which equal parts are compiled once; None with few parts, or if one
    gives no tensor.
    """
    nodes = list(graph.graph.nodes)
    held = [node for node in nodes if node.op == "get_attr"]
    (outputs,) = (node.args[0] for node in nodes if node.op == "output")
    parts: dict[int, list[fx.Node]] = {}
    for node in nodes:
        if node.op == "call_function":
            parts.setdefault(node.meta[PART], []).append(node)
    inner = [node for part in parts.values() for node in part]
    read = {
        node for node in inner if any(user.meta[PART] != node.meta[PART] for user in node.users)
    } | {*outputs}
    handed = [node for node in inner if node in read]
    if len(parts) < FEWEST_LAYERS or not all(node.meta[LIKE] for node in (*held, *handed)):
        return None
    inputs = [node for node in nodes if node.op == "placeholder"]
    chain = Chain(inputs, {node: constant(graph, node).detach() for node in held}, outputs)
    tensors = {**chain.constants, **dict(zip(inputs, example, strict=True))}
    last: dict[fx.Node, int] = {}
    for number, part in enumerate(parts.values()):
        inside = set(part)
        reads = list(
            dict.fromkeys(
                read for node in part for read in node.all_input_nodes if read not in inside
            )
        )
        gives = [node for node in part if node in read]
        module = module_of(part, reads, gives)
        key = f"{module.code} {[node.meta[LIKE] for node in reads]}"
        if (program := known.get(key)) is None:
            program = compiled(
                module, [tensors[node] if node in tensors else empty_like(node) for node in reads]
            )
            known[key] = program
        chain.calls.append((program, reads, gives, []))
        last |= dict.fromkeys([*gives, *reads], number)
    for node in last.keys() - {*tensors, *outputs}:
        chain.calls[last[node]][-1].append(node)
    return chain


def module_of(
    part: Sequence[fx.Node], reads: Sequence[fx.Node], gives: Sequence[fx.Node]
) -> fx.GraphModule:
    """The operations of a part as a graph of its own, whose code is the same where the operations
    are.
    """
    graph = fx.Graph()
    copies = {node: graph.placeholder(f"read_{number}") for number, node in enumerate(reads)}
    for number, node in enumerate(part):
        args: Any = fx.node.map_arg(node.args, copies.__getitem__)
        kwargs: Any = fx.node.map_arg(node.kwargs, copies.__getitem__)
        copies[node] = graph.create_node(node.op, node.target, args, kwargs, f"value_{number}")
    graph.output(tuple(copies[node] for node in gives))
    return fx.GraphModule({}, graph)


def empty_like(node: fx.Node) -> Tensor:
    size, strides, dtype, device = node.meta[LIKE]
    return torch.empty_strided(size, strides, dtype=dtype, device=device)


def num_bytes(tensors: Iterable[Tensor]) -> int:
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


class Captured:
    """A program that a CUDA graph replays, in `fixed` memory that it writes; the next replay
    overwrites results.
    """

    warm_ups = (
        3  # runs before the capture, so that libraries have allocated and tuned what they need
    )

    def __init__(
        self, program: Program, fixed: Sequence[Tensor], example: Sequence[Tensor]
    ) -> None:
        self.program = (
            program  # the graph reads its constants where they lie, so that they have to live on
        )
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
        self.graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(self.warm_ups):
                self.program(*self.fixed, *self.inputs)
        torch.cuda.current_stream().wait_stream(stream)
        # Matrix products take their scratch memory anew, so that the graph keeps what it recorded.
        # PyTorch shares this memory among all that runs on a stream, and its own graphs give it
        # back: a graph that had recorded the shared one would write into memory of somebody else.
        # For the same reason no other thread may work on a GPU meanwhile.
        torch._C._cuda_clearCublasWorkspaces()
        try:
            with torch.cuda.graph(self.graph, stream=stream):
                self.outputs = self.program(*self.fixed, *self.inputs)
        finally:
            torch._C._cuda_clearCublasWorkspaces()

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Replay for `fixed`, which is known, and fresh inputs."""
        for held, fresh in zip(self.inputs, tensors[len(self.fixed) :], strict=True):
            held.copy_(fresh, non_blocking=True)
        with torch.cuda.device(self.device):
            self.graph.replay()
        return self.outputs
