"""A tiny pair with a gate, and a way to call the command line."""

import pytest

from gistgate.cli import main as cli
from gistgate.measure import costs
from tests.certificates.proofs import linear_gate, point, proof_for
from tests.tiny import byte_tokenizer, save_pair, tiny_pair


@pytest.fixture(scope="session")
def pair(tmp_path_factory):
    """Folders of a target, its draft and a gate that finds everything harmless."""
    folder = tmp_path_factory.mktemp("pair")
    target, draft = tiny_pair(noise=0.3)
    save_pair(folder, target, draft, byte_tokenizer())
    gate = linear_gate(target, draft)
    gate.save(folder / "gate")
    proof_for(gate, point(0.01, certified=False), point(0.03, settings={"risk": 1.0})).save(
        folder / "gate"
    )
    return folder


@pytest.fixture
def run(monkeypatch, capsys):
    """Call the command line; returns (status, stdout, stderr)."""

    monkeypatch.setattr(costs, "MAX_TURNS", costs.TURNS)  # a busy machine must not make tests slow

    def call(*arguments):
        monkeypatch.setattr("sys.argv", ["gistgate", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            cli.main()
        said = capsys.readouterr()
        return left.value.code or 0, said.out, said.err

    return call
