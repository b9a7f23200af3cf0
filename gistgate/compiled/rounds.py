"""The device's share of a round as pure functions of tensors: draft K tokens; verify, judge and
accept them.

Axis letters: B rows, K drafted tokens, V vocabulary, M memory tensors of a model. `feed [B, 5]` is
    what the host says
about each row: its last two tokens, the number of the last one, how many drafted tokens there is
    room for, and 1 where
the answer begins.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gistgate.compiled.memory import attending_to_slots, forward, program_of
from gistgate.compiled.program import HEAVY, Program, UnsupportedError, num_bytes
from gistgate.core.block import Block, Sampling
from gistgate.core.features import tap
from gistgate.core.rule import draw, settle
from gistgate.core.session import DecoderParts

PREVIOUS, LAST, AT, ROOM, BEGINS = range(5)  # columns of `feed`
FEED = 5  # how many they are


def draft_token(
    model: PreTrainedModel, vocabulary: int, sampling: Sampling, gives_q: bool, *tensors: Tensor
) -> tuple[Tensor, ...]:
    """Memory M, ids [B, N] and their numbers, uniforms [B, 1 or 0] -> the next x [B], q [B, V] ([B,
    0]: unasked).
    """
    *memory, ids, positions, uniform = tensors
    z_BV = sampling.logits(forward(model, memory, ids, positions, 1)[:, -1, :vocabulary])
    if sampling.greedy and not gives_q:
        return z_BV.argmax(-1), z_BV[:, :0]
    q_BV = z_BV.softmax(-1)
    x_B = z_BV.argmax(-1) if sampling.greedy else draw(q_BV, uniform[:, 0])
    return x_B, q_BV if gives_q else q_BV[:, :0]


def draft_steps(num: int, first: Program, later: Program, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Memory M, feed [B, 5], uniforms [B, K] -> x [B, K], q [B, K, V]; the `first` of `num` steps
    reads two tokens.
    """
    *memory, feed, uniforms = tensors
    # The last drafted token of a block is never read, so after a whole block two tokens are new.
    # Reading both always keeps the shape, and reading one again changes nothing.
    ids = anew(feed[:, PREVIOUS : LAST + 1])
    positions = feed[:, AT : AT + 1] + torch.arange(-1, 1, device=feed.device)
    drawn = []
    for step in range(num):
        drawn.append(
            (later if step else first)(*memory, ids, positions, anew(uniforms[:, step : step + 1]))
        )
        ids = drawn[-1][0][:, None]
        positions = positions[:, -1:] + 1
    return tuple(torch.stack(one, dim=1) for one in zip(*drawn, strict=True))


def anew(columns: Tensor) -> Tensor:
    """The same values with the strides of a new tensor; `Tensor.contiguous` keeps the stride of the
    only row.
    """
    return columns.clone(memory_format=torch.contiguous_format)


def verify_round(
    parts: DecoderParts, num: int, sampling: Sampling, protocol: Tensor, *tensors: Tensor
) -> tuple[Tensor, ...]:
    """Memory M, feed [B, 5], x [B, K], valid [B, K], q [B, K, V or 0], uniforms [B, K + 1] -> [B,
    2K + 2].

    The columns: K draft tokens, K reasons, the accepted length, the target's own token.
    """
    *memory, feed, x_BK, valid_BK, q_BKV, uniforms = tensors
    ids = torch.cat([feed[:, LAST : LAST + 1], x_BK], dim=1)
    steps = torch.arange(num + 1, device=ids.device)
    with tap(parts.target, parts.layers) as states:
        z = forward(parts.target, memory, ids, feed[:, AT : AT + 1] + steps, num + 1)
    block = Block(
        x_BK,
        valid_BK & (steps[:-1] < feed[:, ROOM : ROOM + 1]),
        sampling.logits(z[..., : parts.vocabulary]),
        q=q_BKV if q_BKV.shape[-1] else None,
        hidden={layer: state[:, -num - 1 :] for layer, state in states.items()},
        uniforms=uniforms if uniforms.shape[1] else None,
        greedy=sampling.greedy,
        protocol=protocol,
        begins=feed[:, BEGINS] > 0,
    )
    if parts.judged:
        block = block.with_gate(parts.gate)
    acceptance = settle(parts.rule, block, {})
    if parts.rule.advance(block, acceptance, {}):
        raise UnsupportedError(
            f"the rule '{parts.rule.id}' remembers something from round to round"
        )
    own = torch.stack([acceptance.length, acceptance.own_ids], dim=1)
    return (torch.cat([x_BK, acceptance.reasons, own], dim=1),)


# Most layers of one program. Compiling takes about a second for each, and a model with so many
# layers in a block spends so long in every step that calling a program for each costs nothing. On a
# GPU one graph replays all steps either way.
MOST_LAYERS = 64


def draft_program(
    model: PreTrainedModel,
    vocabulary: int,
    sampling: Sampling,
    gives_q: bool,
    num: int,
    memory: Sequence[Tensor],
    width: int,
) -> Program:
    """`draft_steps` of `num` tokens, of which `width` (num, or 0 where nothing is random) are
    drawn.
    """
    about = (vocabulary, sampling, gives_q, bool(width))
    token = partial(draft_token, model, vocabulary, sampling, gives_q)

    def zeros(columns: int, dtype: torch.dtype = torch.long) -> Tensor:
        return torch.zeros(memory[0].shape[0], columns, dtype=dtype, device=memory[0].device)

    def step(tokens: int) -> Program:
        inputs = [zeros(tokens), zeros(tokens), zeros(min(width, 1), torch.float64)]
        return program_of(
            model, ("draft token", tokens, *about), token, memory, inputs, replays=False
        )

    is_whole = num * model.config.get_text_config().num_hidden_layers <= MOST_LAYERS
    steps = partial(draft_steps, num, *((token, token) if is_whole else (step(2), step(1))))
    inputs = [zeros(FEED), zeros(width, torch.float64)]
    return program_of(model, ("draft", num, *about), steps, memory, inputs, builds=is_whole)


STRETCH = {"cpu": 64}  # prompt tokens per program, by device type; elsewhere `LONG_STRETCH`
LONG_STRETCH = 256
WIDE_STRETCH = 512  # most and fewest prompt tokens of a row that a heavy model reads at once
FEWEST = 16
# Scores of attention that one layer may have at once, as far as `FEWEST` allows: ten bytes each,
# with their masks.
MOST_SCORES = 1 << 26


def prefill(model: PreTrainedModel, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Memory M, a stretch of prompts [B, N], number of its first tokens [B, 1] -> something of no
    interest.
    """
    *memory, ids, first = tensors
    positions = first + torch.arange(ids.shape[1], device=ids.device)
    return (forward(model, memory, ids, positions, 1)[:, -1, 0],)


def stretch_of(model: PreTrainedModel) -> int:
    """Prompt tokens that one program reads."""
    return STRETCH.get(model.device.type, LONG_STRETCH)


class PromptReader:
    """Reads the prompts of a batch into the memory of one model; no program makes a heavy model
    faster at that.
    """

    def __init__(self, model: PreTrainedModel, memory: Sequence[Tensor]) -> None:
        self.model = model
        self.memory = memory
        self.width = stretch_of(model)
        self.whole = num_bytes([*model.parameters(), *model.buffers()]) < HEAVY
        self.call: Program = partial(prefill, model)
        if self.whole:
            ids = torch.zeros(memory[0].shape[0], self.width, dtype=torch.long, device=model.device)
            self.call = program_of(
                model, ("prefill", self.width), self.call, memory, [ids, ids[:, :1].clone()]
            )

    def read(self, texts: Sequence[list[int]]) -> None:
        """Read one text per row; what is read beyond its end is overwritten before anything looks
        at it.
        """
        longest = max(map(len, texts))
        batch = self.memory[0].shape[0] if self.whole else len(texts)
        ids = torch.zeros(
            batch, rounded_up(longest, self.width) if self.whole else longest, dtype=torch.long
        )
        for row, text in enumerate(texts):
            ids[row, : len(text)] = torch.tensor(text, dtype=torch.long)
        heads = int(self.model.config.get_text_config().num_attention_heads)
        fitting = min(WIDE_STRETCH, max(FEWEST, MOST_SCORES // (batch * heads * max(longest, 1))))
        width = self.width if self.whole else fitting
        ids = ids.to(self.model.device)
        with attending_to_slots(self.model):
            for start in range(0, longest, width):
                # Without a program nothing is read but the slots that the rows have used so far.
                memory = (
                    self.memory
                    if self.whole
                    else [kept[:batch, :, : start + width] for kept in self.memory]
                )
                first = torch.full((batch, 1), start, device=self.model.device)
                self.call(*memory, anew(ids[:, start : start + width]), first)


def rounded_up(number: int, width: int) -> int:
    """The next multiple of `width`."""
    return -(-number // width) * width
