"""Layers are compiled once and called for each layer's weights: results, memory and texts stay the same to the bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from gistgate.compiled import memory as store
from gistgate.compiled import program
from gistgate.compiled.memory import allocate, attending_to_slots
from gistgate.compiled.program import Chain, chained, repetition, trace
from gistgate.compiled.rounds import DraftToken
from gistgate.core.block import Sampling
from gistgate.core.decoder import Decoder
from gistgate.drafters.model import ModelDrafter
from gistgate.rules import make_rule
from tests.architectures import deep_model, noisy_copy, prompts
from tests.core.watching import HalfGate

LAYERS = 5


class Parts:
    """Stands in for the compiler: remembers what it is given, and runs it as it is."""

    def __init__(self) -> None:
        self.graphs: list[fx.GraphModule] = []

    def __call__(self, graph: fx.GraphModule, example: Sequence[Tensor], **_: Any) -> fx.GraphModule:
        graph(*map(torch.zeros_like, example))  # the example has as many tensors as the graph reads, and their shapes
        self.graphs.append(graph)
        return graph


@pytest.mark.parametrize("kind", ["llama", "qwen2", "gpt2", "mistral"])
@torch.no_grad()
def test_every_layer_is_the_same_program_with_its_own_weights_and_memory(kind: str) -> None:
    model, parts = deep_model(kind, LAYERS), Parts()
    with attending_to_slots(model):
        memory = allocate(model, 2, 64)
        inputs = [torch.tensor([[5, 7], [9, 2]]), torch.tensor([[0, 1], [3, 4]]), torch.zeros(2, 0)]
        graph = trace(DraftToken(model, 259, Sampling(), True), [*memory, *inputs])
    chain = chained(graph, [*memory, *inputs], parts)
    assert chain is not None and len(parts.graphs) <= 3
    repeated = max(parts.graphs, key=lambda part: sum(call.program is part for call in chain.calls))
    assert sum(call.program is repeated for call in chain.calls) >= LAYERS - 1
    assert len(repeated.graph.nodes) < len(graph.graph.nodes) / (LAYERS - 1)
    whole, pieces = [kept.clone() for kept in memory], [kept.clone() for kept in memory]
    for one, other in zip(graph(*whole, *inputs), chain(*pieces, *inputs), strict=True):
        assert torch.equal(one, other)
    assert all(torch.equal(one, other) for one, other in zip(whole, pieces, strict=True)) and whole[0].any()


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("rule", ["exact", "autojudge"])
def test_it_writes_the_texts_of_the_eager_engine(monkeypatch: pytest.MonkeyPatch, kind: str, rule: str) -> None:
    """The gate reads states of every layer that it taps, and the rule the logits behind the last one."""
    parts, target = Parts(), deep_model(kind, LAYERS)
    monkeypatch.setattr(program, "HEAVY", 0)
    monkeypatch.setattr(program, "compiled", parts)
    monkeypatch.setattr(store, "missing_compiler", lambda _device: None)
    monkeypatch.setattr(store, "_stores", type(store._stores)())
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
    monkeypatch.setattr(store, "_stores", type(store._stores)())
    found = []
    for engine in ("eager", "compiled"):
        drafter = ModelDrafter(noisy_copy(target, 0.05))
        decoder = Decoder(target, drafter, make_rule("exact"), 3, engine=engine)
        found.append([one.ids for one in decoder.generate(batch, max_new_tokens=20)])
        assert not decoder.engine.fell_back
    assert found[0] == found[1]
    kept = store.store_of(target).programs.values()
    assert any(isinstance(one, Chain) for one in kept)


class Stack(nn.Module):
    """Linear layers of these widths, one behind the other."""

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, width) for width in widths)

    def forward(self, state: Tensor) -> tuple[Tensor, ...]:
        for layer in self.layers:
            state = (layer(state)[..., :1].sin().cos().exp().neg().abs().sqrt().tanh() + state).relu()
        return (state,)


def chain_of(widths: Sequence[int]) -> Any:
    model, example = Stack(widths), [torch.randn(3, 8)]
    with torch.no_grad():
        graph = trace(model, example)
        found = chained(graph, example, Parts())
        assert found is None or torch.equal(found(*example)[0], model(*example)[0])
    return found


def test_layers_of_other_shapes_share_no_program() -> None:
    assert len({id(call.program) for call in chain_of([8] * 6).calls}) <= 3
    assert chain_of([8, 16, 8, 16]) is None
    assert len(chain_of([4, 8, 8, 8, 8]).calls) >= 4


def test_few_layers_are_compiled_as_a_whole() -> None:
    assert chain_of([8, 8]) is None


def test_the_repetition_that_covers_most_is_found() -> None:
    once, layer = [90, 91, 92], list(range(10))
    assert repetition(torch.tensor(once + layer * 4 + [93, 94])) == (3, 10, 4)
    assert repetition(torch.tensor(layer * 2))[2] == 0
    assert repetition(torch.arange(60))[2] == 0
