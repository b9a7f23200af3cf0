"""A terminal has a bar; elsewhere a plain line comes at most once a minute, and the work is done all the same."""

import pickle
import sys

import pytest

from gistgate.request.slots import Usage
from pipeline.common import progress
from pipeline.common.progress import Lines, Pace, bar, decoding, lightning_bar


class Terminal:
    """A stream that says whether it is a terminal, and keeps what is written to it."""

    def __init__(self, is_terminal):
        self.is_terminal, self.said = is_terminal, ""

    def isatty(self):
        return self.is_terminal

    def write(self, text):
        self.said += text

    def flush(self):
        pass


class Clock:
    """Shows what it was set to."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    """The clock of this process's lines, which no bar has begun."""
    clock = Clock()
    monkeypatch.setattr(progress, "PACE", Pace(clock))
    return clock


@pytest.mark.parametrize(
    "is_terminal, title, shown", [(True, "label", True), (False, "label", False), (True, None, False)]
)
def test_a_bar_needs_a_terminal_and_a_title(monkeypatch, clock, is_terminal, title, shown):
    stream = Terminal(is_terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    assert list(bar([1, 2, 3], title=title, unit="shard")) == [1, 2, 3]
    assert ("label" in stream.said and "3/3" in stream.said) == shown and bool(stream.said) == shown


def test_without_a_terminal_a_line_comes_once_a_minute(clock, capsys):
    with bar(title="label, strict", unit="rollout", total=781) as shown:
        for _ in range(130):  # two a second
            clock.now += 0.5
            shown.update(1)
        assert capsys.readouterr().err == "label, strict: 120 of 781 rollouts\n"
        clock.now += 54
        shown.update(2)
        assert capsys.readouterr().err == "", "59 seconds are no minute"
        clock.now += 1
        shown.set_postfix_str("57 labels", refresh=False)
        shown.update(0)
    assert capsys.readouterr().err == "label, strict: 132 of 781 rollouts, 57 labels\n"


def test_without_a_title_nothing_is_said_however_long_it_takes(clock, capsys):
    for _ in bar(range(5), title=None, unit="shard"):
        clock.now += 100
    assert capsys.readouterr().err == ""


def test_a_bar_around_pieces_counts_those_that_are_done(clock, capsys):
    seen = []
    for piece in bar(["a", "b", "c"], title="race", unit="batch"):
        seen.append(piece)
        clock.now += 61
    assert seen == ["a", "b", "c"]
    assert capsys.readouterr().err.splitlines() == [f"race: {n} of 3 batches" for n in (1, 2, 3)]


def test_bars_that_lie_in_each_other_share_the_minute(clock, capsys):
    for _ in bar(range(4), title="reference", unit="split"):
        with bar(title="strict", unit="prompt", total=9) as inner:
            for _ in range(9):
                clock.now += 5
                inner.update(1)
    assert capsys.readouterr().err.splitlines() == [
        "strict: 3 of 9 prompts",
        "strict: 6 of 9 prompts",
        "strict: 9 of 9 prompts",
    ]


@pytest.mark.parametrize(
    "total, line", [(None, "walks: 1 walk"), (1, "walks: 1 of 1 walk"), (2, "walks: 1 of 2 walks")]
)
def test_a_line_knows_one_from_many(clock, total, line):
    lines = Lines(None, "walks", "walk", total)
    lines.update(1)
    assert lines.line() == line


def test_decoding_says_the_mean_accepted_length(clock, capsys):
    usage = Usage()
    with bar(title="fly theta 0.5", unit="prompt", total=4) as shown:
        finished = decoding(shown, usage)
        for _ in range(2):
            clock.now += 40
            usage.finish(tokens=9, forwards=3)
            finished(1)
    assert capsys.readouterr().err == "fly theta 0.5: 2 of 4 prompts, tau 3.00\n"


def test_lightnings_bar_needs_a_terminal(monkeypatch):
    monkeypatch.setattr(sys, "stdout", Terminal(True))
    for refresh_rate in (10, 0):
        [shown] = lightning_bar(refresh_rate, "pair, target", 40)
        assert shown.is_enabled == (refresh_rate > 0)


@pytest.mark.parametrize("refresh_rate, optimisers", [(0, 1), (10, 1), (10, 2)])
def test_without_a_terminal_a_training_says_its_steps(monkeypatch, clock, capsys, refresh_rate, optimisers):
    import pytorch_lightning as pl
    import torch

    class Slow(pl.LightningModule):
        """Takes half a minute for a step."""

        def __init__(self):
            super().__init__()
            self.net = torch.nn.Linear(1, 1)
            self.automatic_optimization = optimisers == 1

        def training_step(self, batch):
            clock.now += 30
            if not self.automatic_optimization:
                for optimizer in self.optimizers():
                    optimizer.step()
            return self.net(batch).mean()

        def configure_optimizers(self):
            return [torch.optim.SGD(self.parameters(), lr=0.1) for _ in range(optimisers)]

    monkeypatch.setattr(sys, "stdout", Terminal(False))
    callbacks = pickle.loads(pickle.dumps(lightning_bar(refresh_rate, "pair, target", 6)))
    options = {"logger": False, "enable_checkpointing": False, "enable_model_summary": False, "accelerator": "cpu"}
    pl.Trainer(max_epochs=2, callbacks=callbacks, **options).fit(Slow(), torch.ones(3, 1, 1))
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("pair")]
    assert said == [f"pair, target: {n} of 6 steps" for n in (2, 4, 6) if refresh_rate]
