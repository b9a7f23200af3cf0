"""An undamaged project in a folder: models, gate, certificate, guard, datastore, probes, parameters, pair and task."""

from __future__ import annotations

from pathlib import Path

import torch
import yaml

from gistgate.gates.config import GateConfig
from gistgate.gates.gate import Gate
from gistgate.identity import identify_model, identify_tokenizer
from gistgate.optional.guards import DomainGuard
from gistgate.optional.retrieval.config import DatastoreConfig
from gistgate.optional.retrieval.projection import Projection
from gistgate.optional.retrieval.store import Datastore
from gistgate.optional.segments.building import GATE
from gistgate.optional.segments.files import Probes
from gistgate.optional.segments.probes import Probe
from tests.certificates.proofs import point, proof_for
from tests.tiny import byte_tokenizer, save_pair, tiny_pair, write_task

METHOD = {"rule": "fly", "knob": "theta", "grid": [0.5, 0.3]}
PARAMS = {
    "pair": "tiny",
    "task": "sums",
    "seed": 1,
    "headline_budget": 0.03,
    "prompts": {"train": 4, "development": 4, "calibration": 4, "test": 2, "guard": 2},
    "methods": {"lossless": {"exact": {"rule": "exact"}}, "free": {"fly": METHOD}},
}
PAIR = {"target": {"model": "./target", "dtype": "float32"}, "draft": {"model": "./draft", "dtype": "float32"}}


def build(folder: Path) -> None:
    """Write everything into `folder`."""
    torch.manual_seed(0)
    tokenizer, (target, draft) = byte_tokenizer(), tiny_pair(noise=0.3)
    save_pair(folder, target, draft, tokenizer)
    config = GateConfig(
        {"type": "mlp", "hidden_size": 8}, {"h_tok:post": 32, "scalars": 8}, identify_model(target, "target"),
        identify_model(draft, "draft"), identify_tokenizer(tokenizer, "target"),
    )  # fmt: skip
    for place, risk in (("gate", 0.2), ("other", 0.3)):  # two gates of one shape
        gate = Gate(config)
        gate.save(folder / place)
        proof_for(gate, point(0.01), point(0.03, settings={"risk": risk})).save(folder / place)
    DomainGuard(torch.zeros(32), torch.eye(32)[:4], torch.ones(5), far=2.0).save(folder / "gate")
    store = DatastoreConfig(identify_model(target, "target"), identify_tokenizer(tokenizer, "target"), "post", 0, 0)
    keys = torch.nn.functional.normalize(torch.randn(8, 16), dim=-1)
    Datastore.build(
        store, Projection(torch.randn(32, 16), torch.zeros(16)), keys, [[5, 6, 7], [8, 9, 10, 11, 12]]
    ).save(folder / "store")
    certificate = {"rule": "segment", "settings": {"threshold": 0.5, "opinion": "ratio", "risk": 0.3}, "budget": 0.03}
    Probes(Probe(32, 8), Probe(32, 8, "last"), "re:[a-z]$", 8, certificate).save(folder / "probes", target, draft)
    Gate(config).save(folder / "probes" / GATE)
    (folder / "models/pairs").mkdir(parents=True)
    (folder / "models/pairs/tiny.yaml").write_text(yaml.safe_dump(PAIR))
    (folder / "params.yaml").write_text(yaml.safe_dump(PARAMS))
    (folder / "data").mkdir()
    write_task(folder, num_train=16, num_test=4)
    (folder / "tasks").rename(folder / "data/tasks")
    (folder / "prompts.txt").write_text("Tom has\nAnna gave\n")
