"""Layers are compiled once and called for each layer's weights: results, memory and texts stay the
same to the bit.
"""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from gistgate.compiled import memory, program
from gistgate.compiled.memory import allocate, attending_to_slots, forward, layers_of
from gistgate.compiled.program import Chain, chained, trace
from gistgate.compiled.rounds import DraftSteps
from gistgate.core.block import Sampling
from gistgate.core.decoder import Decoder
from gistgate.drafters.model import ModelDrafter
from gistgate.rules import make_rule
from tests.architectures import deep_model, noisy_copy, pair, prompts
from tests.core.watching import HalfGate, head_inputs, in_one_piece

LAYERS, NUM = 5, 9


class Parts:
    """Stands in for the compiler: remembers what it is given, and runs it as it is."""

    def __init__(self) -> None:
        self.graphs: list[fx.GraphModule] = []

    def __call__(
        self, graph: fx.GraphModule, example: Sequence[Tensor], **_: Any
    ) -> fx.GraphModule:
        graph(
            *map(torch.zeros_like, example)
        )  # the example has as many tensors as the graph reads, and their shapes
        self.graphs.append(graph)
        return graph


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Parts:
    """All that is compiled from here on, in chains."""
    made = Parts()
    monkeypatch.setattr(program, "HEAVY", 0)
    monkeypatch.setattr(program, "compiled", made)
    monkeypatch.setattr(memory, "missing_compiler", lambda _device: None)
    monkeypatch.setattr(memory, "_stores", type(memory._stores)())
    return made


@pytest.mark.parametrize("kind", ["llama", "qwen2", "gpt2", "mistral"])
@torch.no_grad()
def test_every_layer_is_the_same_program_with_its_own_weights_and_memory(
    kind: str, parts: Parts
) -> None:
    model = deep_model(kind, LAYERS)
    with attending_to_slots(model):
        slots = allocate(model, 2, 64)
        inputs = [torch.tensor([[5, 7], [9, 2]]), torch.tensor([[0, 1], [3, 4]]), torch.zeros(2, 0)]
        steps = DraftSteps(model, 259, Sampling(), gives_q=True, draws=False)
        graph = trace(steps.token, [*slots, *inputs], layers_of(model))
    chain = chained(graph, [*slots, *inputs], {})
    assert (
        chain is not None and len(parts.graphs) == 3
    )  # what comes before, the layer, and what comes behind
    assert [parts.graphs.index(call[0]) for call in chain.calls] == [0, *[1] * LAYERS, 2]
    assert len(parts.graphs[1].graph.nodes) < len(graph.graph.nodes) / (LAYERS - 1)
    whole, pieces = [kept.clone() for kept in slots], [kept.clone() for kept in slots]
    for one, other in zip(graph(*whole, *inputs), chain(*pieces, *inputs), strict=True):
        assert torch.equal(one, other)
    assert (
        all(torch.equal(one, other) for one, other in zip(whole, pieces, strict=True))
        and whole[0].any()
    )


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("rule", ["exact", "autojudge"])
def test_it_writes_the_texts_of_the_eager_engine(kind: str, rule: str, parts: Parts) -> None:
    """The gate reads states of every layer that it taps, and the rule the logits behind the last
    one.
    """
    target = deep_model(kind, LAYERS)
    made = make_rule(rule, **({"risk": 0.5} if rule == "autojudge" else {}))
    found = []
    for engine in ("eager", "compiled"):
        drafter = ModelDrafter(noisy_copy(target, 0.05))
        decoder = Decoder(target, drafter, made, 3, gate=HalfGate(), engine=engine)
        done = decoder.generate(prompts(5, 17, 10), max_new_tokens=20)
        assert not decoder.engine.fell_back
        found.append([(one.ids, one.reasons, one.finish) for one in done])
    assert found[0] == found[1] and parts.graphs


@pytest.mark.slow
def test_the_compilers_programs_write_the_greedy_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    target, batch = deep_model("llama", LAYERS), prompts(5, 17, 10)
    monkeypatch.setattr(program, "HEAVY", 0)
    monkeypatch.setattr(memory, "_stores", type(memory._stores)())
    found = []
    for engine in ("eager", "compiled"):
        drafter = ModelDrafter(noisy_copy(target, 0.05))
        decoder = Decoder(target, drafter, make_rule("exact"), 3, engine=engine)
        found.append([one.ids for one in decoder.generate(batch, max_new_tokens=20)])
        assert not decoder.engine.fell_back
    assert found[0] == found[1]
    assert any(isinstance(one, Chain) for one in memory.store_of(target).programs.values())


class Stack(nn.Module):
    """Linear layers of these widths, one behind the other."""

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, width) for width in widths)

    def forward(self, state: Tensor) -> tuple[Tensor, ...]:
        for layer in self.layers:
            state = (layer(state)[..., :1].sin() + state).relu()
        return (state,)


@pytest.mark.parametrize(
    ("widths", "programs"),
    [([8] * 6, 2), ([8, 16, 8, 16], 4), ([4, 8, 8, 8], 4), ([8], None)],
    ids=["equal", "in turn", "another one first", "a single one"],
)
@torch.no_grad()
def test_layers_share_a_program_where_their_shapes_are_equal(
    widths: list[int], programs: int | None, parts: Parts
) -> None:
    """Behind every layer lies one part more, of the operations between layers."""
    model, example = Stack(widths), [torch.randn(3, 8)]
    graph = trace(model, example, list(model.layers))
    chain = chained(graph, example, {})
    if programs is None:
        assert chain is None
    else:
        assert chain is not None and torch.equal(chain(*example)[0], model(*example)[0])
        assert len(parts.graphs) == programs and len(chain.calls) == 2 * len(widths)


@pytest.mark.parametrize("rows, keep", [(3, 4), (3, 1), (3, NUM), (1, 4), (1, 1)])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "gpt2"])
@torch.no_grad()
def test_the_output_layer_reads_rows_in_one_piece(kind: str, rows: int, keep: int):
    """Each of its weights would be copied for every row otherwise, in every round of the compiled
    engine.
    """
    model, ids = pair(kind)[0], torch.tensor(prompts(*[NUM] * rows))
    slots = allocate(model, rows, NUM + 5)
    positions = torch.arange(NUM).expand(rows, NUM)
    with attending_to_slots(model), head_inputs(model) as seen:
        logits = forward(model, slots, ids, positions, keep)
    assert [tuple(states.shape) for states in seen] == [(rows, keep, 32)]
    assert in_one_piece(seen[0])
    assert torch.allclose(logits, model(ids).logits[:, -keep:], atol=1e-5)
