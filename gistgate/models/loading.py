"""Models and tokenizers from hub ids, folders and GGUF files: the one loader of the library and the
pipeline.

Weights are read from safetensors alone, whole and finite, and code from elsewhere never runs.
"""

import re
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakSet

import torch
import transformers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GgufConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import cached_file, has_file

from gistgate.core.attention import keep_freed_memory
from gistgate.core.files import read_json
from gistgate.core.request import eos_ids
from gistgate.core.utils import UserError, first_line, is_out_of_memory, nearest
from gistgate.models.lighter import Subset, check_kind, quantise

T = TypeVar("T")

DTYPES = ("auto", "float32", "bfloat16", "float16")
GGUF = ".gguf"
PART = re.compile(r"-\d{5}-of-(?!00001)\d{5}\.gguf$", re.IGNORECASE)
ADAPTER = "adapter_config.json"  # of PEFT
OTHER_HEADS = (
    "ForMaskedLM",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
)
RETRIEVAL = (
    "suffix",
    "lookup",
)  # drafters that a pair may have in place of a draft model: they copy from the text


def placed(name: str, gguf: str | None = None) -> tuple[str, dict[str, str]]:
    """The folder or hub id for `from_pretrained`, and the GGUF file in it if there is one or the
    name is one.
    """
    path = Path(name).expanduser()
    if gguf is None and path.suffix.lower() == GGUF and path.is_file():
        return str(path.parent), {"gguf_file": path.name}
    return str(path) if name.startswith("~") else name, {} if gguf is None else {"gguf_file": gguf}


def is_path(name: str) -> bool:
    """Whether a name can only be of something here; hub ids are `owner/name` or `name`."""
    return (
        not name
        or name.startswith((".", "/", "~"))
        or name.count("/") > 1
        or name.lower().endswith(GGUF)
    )


def check_place(role: str, name: str, file: str | None = None, revision: str | None = None) -> None:
    """Refuse what is no model that continues texts, and say what lies there instead and what
    helps.
    """
    path = Path(name)
    is_whole = file is None and role != "tokenizer"
    place = stored_file(name, "config.json", revision) if is_whole else None
    config = None if place is None else read_json(place)
    config = config if isinstance(config, dict) else {}
    kind = config.get("model_type")
    heads = config.get("architectures") or []
    is_empty = is_whole and path.is_dir() and not any(path.glob("model*.safetensors"))
    found = {
        one.parent
        for deep in ("*", "snapshots/*")
        for one in path.glob(f"{deep}/model*.safetensors")
    }
    inner = ", ".join(sorted(map(str, found), key=lambda one: (len(one), one))) if is_empty else ""
    files = ", ".join(sorted(one.name for one in path.glob("*.[gG][gG][uU][fF]")))
    adapter = read_json(path / ADAPTER) if is_empty and (path / ADAPTER).is_file() else {}
    is_new = kind not in (None, *transformers.CONFIG_MAPPING)
    is_other = kind in CONFIG_MAPPING_NAMES and kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    is_other |= bool(config.get("is_encoder_decoder")) or any(
        head.endswith(OTHER_HEADS) for head in heads
    )
    version = f"transformers {transformers.__version__}"
    causes = {
        "does not exist. Correct the path, or name a model on the hub as owner/name": (
            not name or (is_path(name) and not path.exists())
        ),
        "is a file. Name the folder of a model, or a file in the format GGUF": path.is_file(),
        f"has no file {file} (GGUF files there: {files or 'none'}). Correct the name": (
            file and path.is_dir() and not (path / file).is_file()
        ),
        f"is not whole in {file}. Join the parts with `llama-gguf-split --merge`": (
            file and PART.search(file)
        ),
        f"is in {file}, which {version} would know by its ending. Rename it to end in {GGUF}": (
            file and not file.endswith(GGUF)
        ),
        "is read by the package `gguf`. Run `pip install '.[gguf]'` in GistGate's clone": (
            file and find_spec("gguf") is None
        ),
        f"is an adapter of '{adapter.get('base_model_name_or_path')}'. Merge both (PEFT: merge_and_unload, save_pretrained) and name the result": (
            adapter
        ),
        f"is a folder of models. Name one: {inner}": inner,
        f"holds GGUF files. Name one with its path: {files}": is_empty and not config and files,
        "has no config.json. Name a folder as `save_pretrained` writes it": is_empty and not config,
        "runs code of its makers, which GistGate never does. Name another model": (
            is_new and "auto_map" in config
        ),
        f"is a '{kind}', which {version} does not know. Install a newer one, or name another model": (
            is_new
        ),
        f"is a {heads[0] if heads else kind}, which does not continue texts. Name a causal language model": (
            is_other
        ),
    }
    if (why := next((said for said, holds in causes.items() if holds), None)) is not None:
        raise UserError(f"The {role} '{name}' {why}.")


def stored_file(
    name: str, file: str, revision: str | None = None, local: bool = True
) -> Path | None:
    """A file of a model in its folder, in the cache of the hub or, unless `local`, on the hub; None
    without one.
    """
    with suppress(OSError):
        found = cached_file(name, file, revision=revision, local_files_only=local)
        return None if found is None else Path(found)
    return None


def weight_files(name: str, revision: str | None = None, local: bool = True) -> list[Path]:
    """The safetensors files that transformers reads of a model; others, such as a consolidated
    copy, may lie beside.
    """
    single = stored_file(name, "model.safetensors", revision, local)
    index = None if single else stored_file(name, "model.safetensors.index.json", revision, local)
    names = [] if index is None else sorted(set(read_json(index)["weight_map"].values()))
    files = [single, *(stored_file(name, one, revision, local) for one in names)]
    return [file for file in files if file is not None]


def load_model(role: str, name: str, device: Any, **options: Any) -> PreTrainedModel:
    """A model for decoding on a device; None leaves it where `options`, which go to transformers,
    put it.
    """
    model = or_refuse(role, name, lambda: whole_model(name, **options), **options)
    if device is not None:
        model = model.to(device)
        keep_freed_memory(device)
    return model.eval()


def whole_model(name: str, **options: Any) -> PreTrainedModel:
    """A model from safetensors or GGUF files that hold all of its weights, which transformers would
    else make up.
    """
    options = {
        "trust_remote_code": False,
        **options,
        "use_safetensors": None if options.get("gguf_file") else True,
    }
    if options.get(
        "gguf_file"
    ):  # unpacked, so that every machine computes alike and a draft can be rounded
        options["quantization_config"] = GgufConfig(dequantize=True)
    model, report = AutoModelForCausalLM.from_pretrained(name, **options, output_loading_info=True)
    found: PreTrainedModel = model
    if file := options.get("gguf_file"):  # the configuration names the folder alone
        found.gguf_file = str(
            cached_file(name, file, revision=options.get("revision"), local_files_only=True)
        )
    if lacking := sorted([*report["missing_keys"], *report["mismatched_keys"]], key=str):
        raise ValueError(f"its files lack {len(lacking)} weights, such as {lacking[0]}")
    for weight, parameter in found.named_parameters():
        if parameter.device.type != "meta" and not is_finite(parameter):
            raise ValueError(f"the weight {weight} is not finite")
    return found


def is_finite(parameter: torch.Tensor) -> bool:
    """Whether all values are finite; floats of one byte have no test of their own."""
    is_narrow = parameter.is_floating_point() and parameter.element_size() == 1
    return bool((parameter.to(torch.bfloat16) if is_narrow else parameter).isfinite().all())


def or_refuse(
    role: str,
    name: str,
    load: Callable[[], T],
    gguf_file: str | None = None,
    revision: str | None = None,
    **_: Any,
) -> T:
    """What `load` returns; whatever fails is one sentence that names the cause and the remedy."""
    check_place(role, name, gguf_file, revision)
    try:
        return load()
    except UserError:
        raise
    except (
        Exception
    ) as error:  # damaged files, a hub out of reach and unknown architectures fail in many ways
        if is_out_of_memory(error):
            raise
        check_place(
            role, name, gguf_file, revision
        )  # the hub may have sent the configuration by now
        named = name if gguf_file is None else str(Path(name) / gguf_file)
        raise UserError(
            f"The {role} '{named}' could not be loaded ({first_line(error)})."
            f" {load_remedy(name, error)}"
        ) from error


def load_remedy(name: str, error: BaseException | None) -> str:
    """What helps after `error`; transformers hides the hub's own error behind its own."""
    one = error
    text = ""
    while one is not None:
        text = f"{text} {type(one).__name__} {one}".lower()
        one = one.__cause__ or one.__context__
    if isinstance(error, ImportError):
        return "Install what the message names, or leave out what asks for it."
    if "use_safetensors" in text or "no file named model.safetensors" in text:
        return "Only weights in safetensors files are read, because pickled ones may run code."
    if (
        "tokenizer" in text
        and Path(name).is_dir()
        and set(tokenizer_files(name)) <= {"tokenizer_config.json"}
    ):
        return (
            "Copy tokenizer.json and tokenizer_config.json there from the model that it was made"
            " from."
        )
    if Path(name).is_dir():
        return "Its files are damaged or incomplete; restore the folder or write it again."
    if "gatedrepo" in text or "gated repo" in text:
        return (
            f"Accept its licence on https://huggingface.co/{name} and log in with `hf auth login`."
        )
    if "offlinemode" in text or "localentrynotfound" in text or "connect" in text:
        return (
            "It is not in the local cache, and the hub was not asked or could not be reached. Check"
            " the name and the connection, set HF_HUB_OFFLINE=0 to let it be fetched, or name a"
            " local folder."
        )
    return "Check the name, its revision, or the folder; a private model needs `hf auth login`."


NEUTRAL: dict[str, Any] = {
    "num_beams": 1,
    "guidance_scale": 1.0,
    "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "min_length": 0,
    "min_new_tokens": 0,
    "suppress_tokens": [],
    "begin_suppress_tokens": [],
    "bad_words_ids": [],
    "sequence_bias": {},
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "exponential_decay_length_penalty": None,
}
"""Entries of generation_config.json that change which token is the most probable one, each with the
value at which it changes nothing."""


def warn_generation_config(model: PreTrainedModel) -> None:
    """Say which entries of the model's own generation_config.json this decoder leaves out."""
    found = {name: getattr(model.generation_config, name, None) for name in NEUTRAL}
    named = ", ".join(
        f"{name}={value}" for name, value in found.items() if value not in (None, NEUTRAL[name])
    )
    if named:
        warnings.warn(
            f"The generation_config.json of {model.config.name_or_path or 'a model'} asks for"
            f" {named}, which GistGate does not apply: it writes the most probable token, or"
            " samples, without it. Programs that apply it write other texts.",
            stacklevel=3,
        )


@dataclass(frozen=True)
class Target:
    """A loaded target with its tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase

    @property
    def eos_ids(self) -> list[int]:
        """Every id that ends an answer."""
        return eos_ids(self.model, self.tokenizer)

    def encode(
        self, prompt: str, chat: bool = False, system: str | None = None, arguments: Any = None
    ) -> list[int]:
        """Token ids of a prompt, in the chat template with its `arguments` where `chat` says so."""
        if not chat:
            if system or arguments:
                raise UserError(
                    "A system text and a template belong to a chat. Add --chat, or leave them away."
                )
            warn_untemplated(self.tokenizer, "--chat uses it")
        return encode(self.tokenizer, self.rendered(prompt, system, arguments) if chat else prompt)

    def rendered(self, prompt: str, system: str | None = None, arguments: Any = None) -> str:
        """A prompt as the chat template writes it out, up to where the answer begins."""
        before = [{"role": "system", "content": system}] if system else []
        return rendered(
            self.tokenizer, [*before, {"role": "user", "content": prompt}], **(arguments or {})
        )


HALF = re.compile(
    "[\ud800-\udfff]"
)  # of a surrogate pair, as Python also reads a byte that is no UTF-8


def encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """The ids of a prompt: once what the tokenizer puts in front of a text, and nothing of what it
    puts behind one.
    """
    if HALF.search(text):
        raise UserError(
            "A prompt holds bytes that are no UTF-8, or half a character. Correct its text."
        )
    bare, whole = (list(tokenizer.encode("a", add_special_tokens=adds)) for adds in (False, True))
    at = next((at for at in range(len(whole)) if whole[at : at + len(bare)] == bare), 0)
    ids = list(tokenizer.encode(text, add_special_tokens=False))
    return ids if ids[:1] == whole[:at][:1] else whole[:at] + ids


def rendered(
    tokenizer: Any, messages: list[dict[str, str]], add_generation_prompt: bool = True, **given: Any
) -> str:
    """A chat as the template, `given` these arguments, writes it out, with the mark of an answer or
    without.

    What it refuses is refused: without a text that is left away, another question would be asked.
    """
    given["chat_template"] = template(tokenizer, given.get("chat_template"))
    given |= {
        "add_generation_prompt": add_generation_prompt,
        "continue_final_message": not add_generation_prompt,
    }
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, **given))
    except Exception as error:  # a template is a program of the model's makers
        has_system = any(turn["role"] == "system" for turn in messages)
        remedy = (
            "Leave --system away." if has_system else "Mend the template, or leave --chat away."
        )
        raise UserError(
            f"The tokenizer's chat template fails ({first_line(error)}). {remedy}"
        ) from error


def template(tokenizer: Any, name: str | None = None) -> str:
    """The chat template with this name, or the only or default one; transformers takes an unknown
    name for a text.
    """
    if not (known := tokenizer.chat_template):
        raise UserError(
            "The tokenizer has no chat template. Leave --chat away (`prompting.chat_template:"
            " false`)."
        )
    known = known if isinstance(known, dict) else {"default": known}
    name = name or "default"
    if name not in known:
        raise UserError(
            f"The tokenizer has no chat template '{name}'. {nearest(name, known)} Say --template"
            " NAME."
        )
    return str(known[name])


def warn_untemplated(tokenizer: PreTrainedTokenizerBase, remedy: str) -> None:
    """Warn that prompts are not wrapped in the tokenizer's chat template, if it has one; `remedy`
    says what helps.
    """
    if tokenizer.chat_template is not None:
        warnings.warn(
            "The tokenizer has a chat template, and prompts are not wrapped in it."
            f" Instruction-tuned models answer worse without it; {remedy}.",
            stacklevel=3,
        )


def load_target(
    name: str, dtype: str = "auto", device: str | None = None, gguf: str | None = None
) -> Target:
    """A model by hub id or folder, on the GPU where there is one; `gguf` names a GGUF file
    there.
    """
    if dtype not in DTYPES:
        raise UserError(f"There is no dtype '{dtype}'. Use one of: {', '.join(DTYPES)}.")
    wanted = dtype if dtype == "auto" else getattr(torch, dtype)
    name, place = placed(name, gguf)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    model = load_model("model", name, device, dtype=wanted, **place)
    warn_generation_config(model)
    return Target(model, load_tokenizer(name, **place))


def load_tokenizer(name: str, **place: Any) -> PreTrainedTokenizerBase:
    """A tokenizer by hub id or folder; `place` goes to `from_pretrained`."""

    def read() -> PreTrainedTokenizerBase:
        found: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            name, **{**place, "trust_remote_code": False}
        )
        if (
            set(found.get_vocab().values()) <= found.added_tokens_decoder.keys()
        ):  # made up, for want of files
            raise ValueError("the tokenizer has no tokens of its own")
        return found

    return or_refuse("tokenizer", name, read, **place)


# tokens that only one of two tokenizers may know, or a hundredth of all: families add special
# tokens later
SPARE = 64
COMPARED: WeakKeyDictionary[PreTrainedModel, WeakSet[Any]] = WeakKeyDictionary()
"""The tokenizers, or targets in their place, that a draft model was compared with: a server asks
with every request.
"""


def load_draft(
    draft: PreTrainedModel | str | Path,  # hub id, folder, GGUF file or loaded model
    target: PreTrainedModel,
    tokenizer: Any = None,  # the target's; None: that of what the target was loaded from
    revision: str = "main",  # on the hub
    quantised: str | None = None,  # one of `gistgate.models.lighter.KINDS`
    vocabulary: str | Path | None = None,  # file of a `gistgate.models.lighter.Subset`
    gguf: str | None = None,  # GGUF file in the folder or hub repository that `draft` names
) -> PreTrainedModel:
    """The draft model in the target's dtype and on its device, made lighter; a loaded one is
    changed in place.
    """
    check_kind(quantised or "none")
    if draft is target and (vocabulary is not None or quantised not in (None, "none")):
        raise UserError(
            "Target and draft are one loaded model. Load the draft a second time to make it"
            " lighter."
        )
    subset = None if vocabulary is None else Subset.load(vocabulary)
    if isinstance(draft, str | Path):
        name, place = placed(str(draft), gguf)
        place["revision"] = revision
        draft = load_model("draft", name, target.device, dtype=target.dtype, **place)
        check_smaller(target, draft)
        check_draft_tokenizer(
            target, draft, tokenizer, lambda: own_tokenizer("draft", name, **place)
        )
    else:
        check_draft_tokenizer(target, draft, tokenizer)
    return quantise(draft if subset is None else subset.apply(draft, tokenizer), quantised)


def check_smaller(target: PreTrainedModel, draft: PreTrainedModel) -> None:
    """Refuse a draft whose weights take more memory than its target's: a step of it could only slow
    decoding down.
    """
    most, size = (sum(one.nbytes for one in model.parameters()) for model in (target, draft))
    if size > most:
        raise UserError(
            f"Drafting would cost more than it saves: {size:,} bytes for {most:,}. Swap the two."
        )


def check_draft_tokenizer(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    tokenizer: Any = None,
    read: Callable[[], Any] | None = None,
) -> None:
    """Refuse a draft whose token ids mean something else than the target's, where both tokenizers
    can be read.
    """
    partner = target if tokenizer is None else tokenizer
    if draft is target or partner in COMPARED.get(draft, ()):
        return
    ours = tokenizer_of("target", target) if tokenizer is None else tokenizer
    theirs = None if ours is None else tokenizer_of("draft", draft) if read is None else read()
    if theirs is not None:
        origin = (
            f" The draft's tokenizer is that of '{draft.config.name_or_path}', which its"
            " configuration names; if the model was made otherwise, set `draft.config.name_or_path"
            " = ''`."
        )
        check_same_tokenizer(ours, theirs, "" if read else origin)
    COMPARED.setdefault(draft, WeakSet()).add(partner)


def check_same_tokenizer(target: Any, draft: Any, origin: str = "") -> None:
    """Refuse two tokenizers of which an id means two tokens, or one knows many more; `origin` ends
    the message.
    """
    ours, theirs = (
        {index: token for token, index in one.get_vocab().items()} for one in (target, draft)
    )
    other = next(
        (index for index in sorted(ours.keys() & theirs.keys()) if ours[index] != theirs[index]),
        None,
    )
    if other is not None:
        difference = (
            f"id {other} is {ours[other]!r} for the target and {theirs[other]!r} for the draft"
        )
    elif len(ours.keys() ^ theirs.keys()) > max(SPARE, len(ours) // 100):
        difference = f"the target's has {len(ours)} tokens and the draft's {len(theirs)}"
    else:
        return
    raise UserError(
        f"The draft model has another tokenizer: {difference}. Use a draft model with the target's"
        f" tokenizer, or a drafter without a model such as 'lookup'.{origin}"
    )


def tokenizer_of(role: str, model: PreTrainedModel) -> PreTrainedTokenizerBase | None:
    """The tokenizer of what a loaded model came from; None where that is not known or has none."""
    # A name that is no folder is a hub id only where the cache holds its configuration: the folder
    # may have moved.
    name = str(getattr(model, "gguf_file", None) or model.config.name_or_path)
    is_known = name and (Path(name).exists() or stored_file(name, "config.json"))
    return readable_tokenizer(role, name) if is_known else None


def readable_tokenizer(
    role: str, name: str, revision: str | None = None
) -> PreTrainedTokenizerBase | None:
    """The tokenizer of a model that is loaded already, if it can be read; damaged files are a
    warning.
    """
    # The hub is first asked with one request: transformers repeats its own for half a minute
    # without a network.
    name, place = placed(name)
    is_here = Path(name).is_dir() or bool(tokenizer_files(name, revision))
    with suppress(
        Exception
    ):  # no such repository, no access, a proxy without one: nothing can be read
        if is_here or has_file(name, "tokenizer_config.json", revision=revision):
            try:
                return own_tokenizer(
                    role, name, revision=revision, local_files_only=is_here, **place
                )
            except UserError as error:
                warnings.warn(str(error), stacklevel=2)
    return None


def own_tokenizer(role: str, name: str, **place: Any) -> PreTrainedTokenizerBase | None:
    """A model's own tokenizer, to compare; None without one. `place` goes to `from_pretrained`."""
    if Path(name).is_dir() and not tokenizer_files(name, **place):  # transformers would make one up
        return None
    try:
        return AutoTokenizer.from_pretrained(name, **{**place, "trust_remote_code": False})
    except Exception as error:  # damaged files fail in many ways
        if not (found := tokenizer_files(name, **place)):
            return None
        raise UserError(
            f"The tokenizer of the {role} '{name}' could not be read from {', '.join(found)}"
            f" ({first_line(error)}), so that target and draft cannot be compared. Restore its"
            " files."
        ) from error


TOKENIZERS = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "tekken.json",
)


def tokenizer_files(
    name: str, revision: str | None = None, gguf_file: str | None = None, **_: Any
) -> list[str]:
    """Names of the files with a tokenizer, in a folder or in what is here of a repository on the
    hub.
    """
    if gguf_file is not None:
        return [gguf_file]
    return [file for file in TOKENIZERS if stored_file(name, file, revision)]
