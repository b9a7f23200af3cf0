"""The models and the tokenizer that a gate was trained for: its states mean nothing to others, even
of one shape.
"""

import hashlib
import json
from collections.abc import Container, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gistgate.core.files import fingerprint
from gistgate.core.utils import UserError

SAMPLES = 16  # values read from each parameter for the fingerprint
LIGHTER = ("quantisation", "draft_vocabulary")  # what only models have that were made lighter
# Properties of a model that have to agree. Name and revision are for people: folders move.
BINDING = ("architecture", "hidden_size", "num_layers", "vocabulary_size", *LIGHTER, "fingerprint")
# A text that tokenizers with one vocabulary divide differently, if they differ in their merges or
# their rules.
PROBE = "Tom's 12 apples cost 3.50 €, naïve\n\n\tif x_1 += 007:  # 日本語"


@dataclass(frozen=True)
class ModelIdentity:
    """What tells one model from another."""

    name: str  # hub id or folder, as the user wrote it
    revision: str | None  # hub revision, when known
    architecture: str  # model type, for example "qwen2"
    hidden_size: int  # width of a hidden state
    num_layers: int  # decoder layers
    vocabulary_size: int  # rows of the output layer, padding included
    dtype: str  # dtype the states were computed in; another one moves them a little
    fingerprint: str | None  # hash of sampled weights; None where some weights were not in memory
    quantisation: str | None = (
        None  # how weights are kept, one of `gistgate.models.packed.KINDS`; None: as they are
    )
    draft_vocabulary: str | None = None  # hash of the token ids that a draft may propose; None: all


@dataclass(frozen=True)
class TokenizerIdentity:
    """What tells one tokenizer from another."""

    name: str  # hub id or folder, as the user wrote it
    vocabulary: str  # hash of all tokens and their ids
    num_tokens: int  # tokens, added ones included


def identify_model(model: PreTrainedModel, name: str | None = None) -> ModelIdentity:
    """The identity of a loaded model. `name` defaults to what it was loaded from, without the
    folders above it.
    """
    config = model.config.get_text_config()
    return ModelIdentity(
        name=name or portable_name(model.config.name_or_path),
        revision=getattr(model.config, "_commit_hash", None),
        architecture=config.model_type,
        hidden_size=config.hidden_size,
        num_layers=config.num_hidden_layers,
        vocabulary_size=config.vocab_size,
        dtype=str(model.dtype).removeprefix("torch."),
        fingerprint=weights_fingerprint(model),
        quantisation=getattr(model, "quantised", None),
        draft_vocabulary=getattr(model, "subset", None),
    )


def identify_tokenizer(tokenizer: Any, name: str | None = None) -> TokenizerIdentity:
    """The identity of a transformers tokenizer."""
    tokens = sorted(tokenizer.get_vocab().items(), key=lambda item: (item[1], item[0]))
    digest = hashlib.sha256(json.dumps(tokens, ensure_ascii=False).encode()).hexdigest()
    return TokenizerIdentity(name or portable_name(tokenizer.name_or_path), digest, len(tokens))


def tokenizer_scope(tokenizer: Any, names: Container[str] = ()) -> dict[str, str | None]:
    """The entries of a tokenizer in the scope of a certificate: its vocabulary, and those of the
    others in `names`.
    """
    entries: dict[str, str | None] = {"tokenizer": identify_tokenizer(tokenizer).vocabulary}
    if "encoding" in names:  # how it divides a text, with the tokens that it adds in front
        entries["encoding"] = fingerprint([int(token) for token in tokenizer.encode(PROBE)])
    if "template" in names:
        entries["template"] = fingerprint(tokenizer.chat_template)
    return entries


def model_scope(identity: ModelIdentity) -> dict[str, Any]:
    """The entries of a model in the scope of a certificate; name and revision are left out, because
    folders move.
    """
    entries = {key: getattr(identity, key) for key in (*BINDING, "dtype")}
    return {key: value for key, value in entries.items() if value is not None or key not in LIGHTER}


def gate_hash(gate: Any) -> str:
    """Hash of what a gate computes: its weights, features, head and map, but neither its card nor
    its certificate.
    """
    described = (gate.config.head, list(gate.config.features.items()), gate.config.map)
    digest = hashlib.sha256(fingerprint(described).encode())
    for key, tensor in sorted(gate.state_dict().items()):
        digest.update(key.encode() + str(tensor.dtype).encode() + str(tuple(tensor.shape)).encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def portable_name(name: str) -> str:
    """A hub id as it is; of a path only the last part, because the folders above it belong to one
    machine.
    """
    return Path(name).name if Path(name).is_absolute() else name


def weights_fingerprint(model: PreTrainedModel) -> str | None:
    """A hash of a few values of every parameter, the same in every floating dtype. Where some are
    not in memory it is what the model says of its files, or None.
    """
    parameters = [parameter.detach() for _, parameter in sorted(model.named_parameters())]
    if any(parameter.device.type == "meta" for parameter in parameters):
        return getattr(model, "fingerprint", None)
    return hash_of(parameters)


def hash_of(parameters: Iterable[Tensor]) -> str:
    """The hash of parameters that come in the order of their names."""
    digest = hashlib.sha256()
    for parameter in parameters:
        digest.update(str(tuple(parameter.shape)).encode())
        digest.update(sampled(parameter).view(torch.int16).numpy().tobytes())
    return digest.hexdigest()


def sampled(parameter: Tensor) -> Tensor:
    """Up to SAMPLES evenly spaced values [n] of a parameter, bfloat16, on the CPU."""
    step = max(1, parameter.numel() // SAMPLES)
    return parameter.reshape(-1)[::step][:SAMPLES].to("cpu", torch.bfloat16)


def check_identity(
    role: str,
    expected: ModelIdentity,
    identity: ModelIdentity,
    what: str = "gate",
    other_weights: bool = False,
) -> bool:
    """Refuse a model that `what` was not made for; returns whether weights differ, as
    `other_weights` permits.
    """
    of_weights = {"fingerprint", "quantisation"} if other_weights else {"fingerprint"}
    for prop in BINDING:
        want = getattr(expected, prop)
        have = getattr(identity, prop)
        if prop not in of_weights and want != have:
            option = lightening(role, prop, want)
            name = prop.replace("_", " ")
            raise UserError(misfit(what, role, name, want, have, expected.name, option))
    prints = [expected.fingerprint, identity.fingerprint]
    differs = None not in prints and prints[0] != prints[1]  # a missing one cannot differ
    if differs and not other_weights:
        want, have = (str(fingerprint)[:12] for fingerprint in prints)
        raise UserError(misfit(what, role, "weights", want, have, expected.name))
    return differs or expected.quantisation != identity.quantisation


def check_tokenizer(expected: TokenizerIdentity, tokenizer: Any) -> None:
    """Refuse a tokenizer with other tokens or ids."""
    identity = identify_tokenizer(tokenizer)
    if identity.vocabulary != expected.vocabulary:
        want, have = (
            f"{side.num_tokens} tokens, hash {side.vocabulary[:12]}"
            for side in (expected, identity)
        )
        raise UserError(misfit("gate", "tokenizer", "vocabulary", want, have, expected.name))


def lightening(role: str, prop: str, wanted: str | None) -> str | None:
    """The option that gives a model this property; None for what a model has of itself."""
    if prop == "quantisation":
        option = "--quantise-draft" if role == "draft" else "--quantise"
        return f"with {option} {wanted or 'none'}"
    if prop == "draft_vocabulary":
        option = "--draft-vocabulary"
        return f"with {option} and the file of that vocabulary" if wanted else f"without {option}"
    return None


def misfit(
    what: str,
    role: str,
    prop: str,
    expected: object,
    found: object,
    name: str,
    option: str | None = None,
) -> str:
    """The sentence for a wrong pairing; `option` says which option loads the model otherwise."""
    load = (
        f"Load the {role} {option}" if option else f"Load '{name}', for which the {what} was made"
    )
    return (
        f"This {what} does not fit the {role}: its {prop} should be {expected}, but is {found}."
        f" {load}, or make a {what} for this {role}."
    )
