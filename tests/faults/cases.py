"""The damaged inputs: each a file of the undamaged project, what happens to it, and the command that reads it."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from tests.faults import damage as do

GATE = "inspect gate"
STRICT = "generate target Tom --max-new-tokens 2"
FULL = f"{STRICT} --draft draft --gate gate"
COMMANDS = {
    "gate/config.json": GATE,
    "gate/model.safetensors": GATE,
    "gate/certificate.json": GATE,
    "gate/domain.json": f"{FULL} --guard domain",
    "gate/domain.safetensors": f"{FULL} --guard domain",
    "store/config.json": f"{STRICT} --drafter sen --datastore store",
    "store/projection.safetensors": f"{STRICT} --drafter sen --datastore store",
    "store/keys.safetensors": f"{STRICT} --drafter sen --datastore store",
    "probes/config.json": f"{STRICT} --draft draft --segments probes",
    "probes/model.safetensors": f"{STRICT} --draft draft --segments probes",
    "target/config.json": STRICT,
    "target/model.safetensors": STRICT,
    "target/tokenizer.json": STRICT,
    "prompts.txt": "bench target prompts.txt --draft draft --max-new-tokens 2",
    "params.yaml": "stage prompts",
    "models/pairs/tiny.yaml": "stage prompts",
    "data/tasks/sums.yaml": "stage prompts",
    "train.jsonl": "stage prompts",
}
"""The command that reads a file: arguments of `gistgate`, or a stage of the pipeline."""
SEALED = ("gate/config.json", "gate/certificate.json", "gate/domain.json", "store/config.json", "probes/config.json")
TENSORS = (
    "gate/model.safetensors", "gate/domain.safetensors", "store/projection.safetensors", "store/keys.safetensors",
    "probes/model.safetensors",
)  # fmt: skip
HOSTILE = "\x1b[2J\u202e<script>alert(1)</script>\ud800"
"""A text that would clear a terminal, turn a line round, run in a page and break an encoder."""


@dataclass(frozen=True)
class Case:
    """One damaged input."""

    file: str
    what: str
    damage: do.Damage
    command: str
    words: str = ""
    """What the sentence has to say; empty where damage may be told in several ways."""

    @property
    def id(self) -> str:
        """The name of the test."""
        return f"{self.file}: {self.what}"


def cases() -> list[Case]:
    """All of them, in a fixed order."""
    found = [*whole_files(), *json_values(), *tensor_values(), *models(), *yaml_files(), *other_partners()]
    assert len({case.id for case in found}) == len(found)
    return found


def case(file: str, what: str, damage: do.Damage, command: str | None = None) -> Case:
    """A case with the usual command of its file."""
    return Case(file, what, damage, command or COMMANDS[file])


def whole_files() -> Iterator[Case]:
    """Truncation, flipped bits, garbage, links, pipes and holes, whatever the file means."""
    for file in (*SEALED, *TENSORS):
        for share in (0.0, 0.02, 0.5, 0.97):
            yield case(file, f"cut at {share:.0%}", do.cut(share))
        for share, bit in ((0.001, 0), (0.11, 3), (0.42, 6)):
            if "safetensors" not in file or share < 0.05:  # flipped data is caught where weights are sealed, below
                yield case(file, f"bit {bit} flipped at {share:.1%}", do.flip(share, bit))
        yield case(file, "random bytes", do.content(bytes(range(256)) * 8))
        yield case(file, "a pickle", do.content(pickle.dumps({"weight": [1.0]})))
        yield case(file, "a link to a device", do.link("/dev/zero"))
        yield case(file, "a link out of the folder", do.link("../prompts.txt"))
        yield replace(case(file, "a link to the whole file elsewhere", do.moved), words="leads out of its folder")
        yield case(file, "a link to itself", do.link(file.split("/")[1]))
        yield case(file, "a pipe", do.pipe)
        yield case(file, "a folder", do.folder)
        yield case(file, "a terabyte", do.grown(1 << 40))
    small = "gate/model.safetensors", "probes/model.safetensors", "gate/domain.safetensors"
    for file in (*small, "store/projection.safetensors"):
        for share, bit in ((0.5, 2), (0.7, 5), (0.9, 7), (0.999, 1)):
            yield case(file, f"bit {bit} flipped at {share:.1%}", do.flip(share, bit))
    for file in ("gate/config.json", "gate/certificate.json"):
        for number in range(12):
            yield case(file, f"bit flipped, place {number}", do.flip(number / 12 + 0.01, number % 7))


def json_values() -> Iterator[Case]:
    """Values of another type, out of range, missing, unknown, hostile, or made to look right."""
    for file in SEALED:
        yield case(file, "NaN", do.content(b'{"format_version": NaN}'))
        yield case(file, "a list", do.edited(lambda value: [value]))
        yield case(file, "deep nesting", do.content(b"[" * 100_000 + b"]" * 100_000))
        yield case(file, "a number of 10,000 digits", do.content(b'{"format_version": ' + b"9" * 10_000 + b"}"))
        yield case(file, "the same key twice", do.content(b'{"format_version": 2, "format_version": 2}'))
        yield case(file, "half a character", do.content(b'{"format_version": "\\ud800"}'))
        yield case(file, "an unknown key", do.put(HOSTILE[:-1], 1))
    for place, value in {
        "head.type": [], "head.hidden_size": 1 << 60, "head.hidden_size ": -1, "features": {},
        "features.0.size": 1 << 60,
        "features.0.size ": -8, "features.0.size  ": "32", "features.0.id": HOSTILE[:-1], "map.num_knots": 1 << 60,
        "target.hidden_size": "32", "target.name": 7, "target": None, "tokenizer.num_tokens": 1.5, "labels": [],
        "format_version": True, "map.type": None, "draft": "draft",
    }.items():  # fmt: skip
        yield case("gate/config.json", f"{place} {str(value)[:20]!r}", do.put(place.strip(), value))
    for place, value in {
        "points.1.bound": 0.5, "points.1.certified": "yes", "points.1.settings": {},
        "points.1.settings ": {"risk": "high"},
        "points.1.n": 0, "points.1.confidence": 2, "points": [], "points.0": None, "confidence": 0, "block": -3,
        "rule": 5, "scope": None, "headline_budget": "3 %", "points.1.budget": ..., "knob": "delta",
        "format_version": 1, "sequence": 3,
    }.items():  # fmt: skip
        yield case("gate/certificate.json", f"{place} {str(value)[:20]!r}", do.put(place.strip(), value))
    for place, value in {
        "files.keys.safetensors": 1, "num_keys": 1 << 60, "key_size": 17, "layer": 3, "target.vocabulary_size": 4,
        "target.fingerprint": "0" * 64, "files": {"../prompts.txt": 18}, "files ": {"/etc/passwd": 1}, "files  ": {},
        "files   ": {"": 1},
    }.items():  # fmt: skip
        change = (
            do.edited(lambda value: value["files"].update({"keys.safetensors": 1}))
            if place[-1] == "s" and "." in place
            else do.put(place.strip(), value)
        )
        yield case("store/config.json", f"{place} {str(value)[:20]!r}", change)
    for place, value in {
        "style": 4, "style ": "re:(", "limit": 0, "limit ": "8", "target.hidden_size": 1 << 60,
        "target.pooling": "best",
        "draft.pooling": {}, "certificate": [], "certificate.settings": [], "certificate.rule": {},
        "certificate.settings.threshold": "high", "certificate.settings.opinion": "mine", "draft.model": ...,
        "format": 2,
    }.items():  # fmt: skip
        yield case("probes/config.json", f"{place} {str(value)[:20]!r}", do.put(place.strip(), value))
    for place, value in {"far": "near", "rate": None, "layer": 1, "about": [], "stricter": "no", "layer ": ...}.items():
        yield case("gate/domain.json", f"{place} {value!r}", do.put(place.strip(), value))


def tensor_values() -> Iterator[Case]:
    """Other dtypes, shapes, names, values, and headers that lie."""

    def first(found: dict[str, torch.Tensor]) -> str:
        return max((name for name in found if name not in ("keys", "tokens")), key=lambda name: found[name].numel())

    for file in TENSORS:
        own = (lambda found: "keys") if "keys" in file else first
        yield case(file, "another dtype", do.tensors(lambda f, own=own: f.update({own(f): f[own(f)].double()})))
        yield case(file, "another shape", do.tensors(lambda f, own=own: f.update({own(f): f[own(f)].T.contiguous()})))
        yield case(file, "a tensor is missing", do.tensors(lambda f, own=own: f.pop(own(f))))
        yield case(file, "no tensor at all", do.tensors(lambda f: f.clear()))
        if "keys" not in file:
            yield case(file, "NaN", do.tensors(lambda f, own=own: f[own(f)].view(-1)[:1].fill_(torch.nan)))
            yield case(file, "infinity", do.tensors(lambda f, own=own: f[own(f)].view(-1)[-1:].fill_(torch.inf)))
        yield case(file, "a header of 2^60 bytes", do.header(lambda h: None, length=1 << 60))
        for what, shape in (("2^62 values", [1 << 62]), ("2^40 rows", [1 << 40, 0]), ("a negative size", [-1, 4])):
            yield case(file, what, do.header(lambda h, s=shape: h[next(iter(h))].update(shape=s)))
        yield case(
            file, "offsets behind the end", do.header(lambda h: h[next(iter(h))].update(data_offsets=[0, 1 << 50]))
        )
    for value in (-2, 259, 2**31 - 1):
        yield case("store/keys.safetensors", f"token {value}", do.tensors(lambda f, v=value: f["tokens"][:1].fill_(v)))
    yield case("gate/domain.safetensors", "no variance", do.tensors(lambda f: f["variances"].zero_()))


def models() -> Iterator[Case]:
    """Damaged models and tokenizers, and weights that only a pickle could give."""
    weights, config, tokenizer = "target/model.safetensors", "target/config.json", "target/tokenizer.json"
    for file in (weights, config, tokenizer):
        for share in (0.0, 0.5, 0.97):
            yield case(file, f"cut at {share:.0%}", do.cut(share))
        yield case(file, "a folder", do.folder)
    norm = "model.norm.weight"
    yield case(weights, "a weight is missing", do.tensors(lambda f: f.pop(norm)))
    yield case(weights, "a weight is not finite", do.tensors(lambda f: f[norm][:1].fill_(torch.nan)))
    yield case(weights, "a weight of another shape", do.tensors(lambda f: f.update({norm: torch.ones(31)})))
    yield case(weights, "a header of 2^60 bytes", do.header(lambda h: None, length=1 << 60))
    yield case(weights, "only a pickle", lambda path: path.rename(path.with_name("pytorch_model.bin")))
    for place, value in {"model_type": "nothing", "hidden_size": -1, "num_attention_heads": "x"}.items():
        yield case(config, f"{place} {value!r}", do.put(place, value))
    yield case("prompts.txt", "no text", do.content(b"\xff\xfe\xfa"))
    yield case("prompts.txt", "a pipe", do.pipe)
    yield case("prompts.txt", "a terabyte", do.grown(1 << 40))


def yaml_files() -> Iterator[Case]:
    """Parameters, pairs and tasks."""
    files = ("params.yaml", "models/pairs/tiny.yaml")
    bomb = b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(
        b"%c: &%c [%s]\n" % (98 + n, 98 + n, b",".join([b"*%c" % (97 + n)] * 9)) for n in range(9)
    )
    for file in files:
        for what, text in {
            "nested aliases": bomb, "an alias of itself": b"a: &a [*a]",
            "a Python object": b"!!python/object/apply:os.system [ls]",
            "a list as key": b"? [a, b]\n: c", "no date": b"seed: 2001-99-99", "a list": b"[1, 2]",
            "a tab": b"\tseed: 1",
            "an open bracket": b"seed: [", "zero bytes": b"\x00" * 64, "Latin": "seed: ü".encode("latin-1"),
            "deep nesting": b"[" * 5000, "a number of 10,000 digits": b"seed: " + b"9" * 10_000,
            "an unknown key": b'"\\e[2J<script>": 1', "half a character": b'pair: "\\ud800"',
            "binary": b"seed: !!binary aGk=",
        }.items():  # fmt: skip
            yield case(file, what, do.content(text))
        yield case(file, "a pipe", do.pipe)
        yield case(file, "a device", do.link("/dev/zero"))
        yield case(file, "a terabyte", do.grown(1 << 40))
    for place, value in {
        "seed": -1, "seed ": 1.5, "seed  ": True, "pair": "../../etc/passwd", "pair ": "tinny", "task": "summs",
        "task ": ["a"], "headline_budget": 2, "headline_budget ": float("nan"), "headline_budget  ": float("inf"),
        "prompts.train": 0, "prompts.train ": 10**30, "methods.free.fly.grid": [0.5, 0.1, 0.3], "methods": [],
        "methods.free": None, "methods.free.fly": 3, "methods.free.fly.rule": HOSTILE[:-1],
    }.items():  # fmt: skip
        yield case("params.yaml", f"{place} {str(value)[:20]!r}", do.put_yaml(place.strip(), value))
    for place, value in {
        "target.model": "./nowhere", "target.model ": 3, "target.dtype": "float3", "target": None, "draft": [],
        "tokenizer": "./nowhere", "tokenizer ": "models", "target.device": 5,
    }.items():  # fmt: skip
        yield case("models/pairs/tiny.yaml", f"{place} {value!r}", do.put_yaml(place.strip(), value))
    task = "data/tasks/sums.yaml"
    for what, text in {
        "an open bracket": b"task: [",
        "a list": b"- task: sums",
        "no text": b"\xff\xfe",
        "empty": b"",
    }.items():
        yield case(task, what, do.content(text))
    for place, value in {"output_type": "loglikelihood", "training_split": None, "dataset_path": "./nowhere"}.items():
        yield case(task, f"{place} {value!r}", do.put_yaml(place, value))
    yield case("train.jsonl", "cut", do.cut(0.5))
    yield case("train.jsonl", "random bytes", do.content(bytes(range(128, 256)) * 9))


def other_partners() -> Iterator[Case]:
    """Whole files in the wrong place."""
    yield case("gate/model.safetensors", "weights of another gate", do.copied("other"))
    yield case("gate/config.json", "certificate of another gate", certificate_of_another, f"{FULL} --certificate gate")
    yield case("target/tokenizer.json", "another tokenizer", swapped_tokens, FULL)
    yield case(
        "store/config.json", "another target", lambda p: None, "generate draft Tom --drafter sen --datastore store"
    )
    yield case(
        "probes/config.json", "another target", lambda p: None, "generate draft Tom --draft target --segments probes"
    )
    yield case("gate/config.json", "probes for a gate", do.copied("probes"))
    yield case("probes/config.json", "a gate for probes", do.copied("gate"))
    yield case("store/config.json", "a gate for a store", do.copied("gate"))


def certificate_of_another(path: do.Path) -> None:
    """The certificate of a gate with other weights."""
    do.copied("other")(path.with_name("certificate.json"))


def swapped_tokens(path: do.Path) -> None:
    """Two tokens change their ids."""

    def change(value: dict[str, dict[str, dict[str, int]]]) -> None:
        vocabulary = value["model"]["vocab"]
        vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]

    do.edited(change)(path)
