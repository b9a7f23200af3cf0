"""Where a model lies: hub ids, folders and GGUF files, the files in them, and what is said of a
place that holds no model for decoding.
"""

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import cached_file, is_gguf_available, is_sentencepiece_available

from gistgate.core.files import POINTER, read_json
from gistgate.core.utils import UserError, first_line, is_out_of_memory

T = TypeVar("T")

GGUF = ".gguf"
PART = re.compile(r"-\d{5}-of-(?!00001)\d{5}\.gguf$", re.IGNORECASE)
STUBS = {
    POINTER: "a pointer of Git LFS",
    "<!doctype html": "a web page",
    "<html": "a web page",
    "<?xml": "a web page",
    "Entry not found": "an error of the hub",
    "Invalid username or password": "an error of the hub",
}
"""How files begin that stand in the place of a model's file, and what they are."""
PARTS = ("*.json", "tokenizer.model", "model*.safetensors")
"""Files of a model that are read, as patterns."""
ADAPTER = "adapter_config.json"
"""File of an adapter of PEFT."""
JUDGING_HEADS = (
    "ForMaskedLM",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
)
WRONG_OPTIONS = ("unexpected keyword argument", "'torch' has no attribute", "literal for int()")
"""What Python says, in small letters, of options that lm-eval hands over as they are."""
TOKENIZERS = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "tekken.json",
)


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
        or name.endswith("/")
        or name.count("/") > 1
        or name.lower().endswith(GGUF)
    )


# ---- The files of a model.


def stored_file(name: str, file: str, revision: str | None = None) -> Path | None:
    """A file of a model in its folder or in the cache of the hub; None without one."""
    with suppress(OSError):
        path = cached_file(name, file, revision=revision, local_files_only=True)
        return None if path is None else Path(path)
    return None


def weight_files(name: str) -> list[Path]:
    """The safetensors files that transformers reads of a model; others, such as a consolidated
    copy, may lie beside.
    """
    files = ["model.safetensors"]
    index = stored_file(name, "model.safetensors.index.json")
    if index is not None and stored_file(name, files[0]) is None:
        files = sorted(set(read_json(index)["weight_map"].values()))
    return [path for file in files if (path := stored_file(name, file)) is not None]


def tokenizer_files(
    name: str, revision: str | None = None, gguf_file: str | None = None
) -> list[str]:
    """Names of the files with a tokenizer, in a folder or in what is here of a repository on the
    hub.
    """
    if gguf_file is not None:
        return [gguf_file]
    return [file for file in TOKENIZERS if stored_file(name, file, revision)]


def gguf_files(folder: Path) -> str:
    """Names of the GGUF files of a folder, with commas between them."""
    return ", ".join(sorted(path.name for path in folder.glob("*.[gG][gG][uU][fF]")))


# ---- Refusals.


def check_place(role: str, name: str, file: str | None = None, revision: str | None = None) -> None:
    """Refuse what is no model that continues texts (UserError), and say what lies there instead and
    what helps; `file` names a GGUF file in the folder.
    """
    fault = fault_of_path(name) or fault_of_stub(Path(name), file)
    if fault is None and file is not None:
        fault = fault_of_gguf(Path(name), file)
    elif fault is None:
        check = fault_of_tokenizer if role == "tokenizer" else fault_of_model
        fault = check(name, revision)
    if fault is not None:
        raise UserError(f"The {role} '{name}' {fault}.")


def fault_of_path(name: str) -> str | None:
    """Why a name is no folder and no hub id."""
    path = Path(name)
    if not name or (is_path(name) and not path.exists()):
        return "does not exist. Correct the path, or name a model on the hub as owner/name"
    if path.is_file():
        return "is a file. Name the folder of a model, or a file in the format GGUF"
    return None


def fault_of_stub(folder: Path, file: str | None) -> str | None:
    """Why a file of a folder is not what its name says: an unfinished fetch left a text there."""
    files = [path for pattern in PARTS for path in sorted(folder.glob(pattern))]
    for path in files if file is None else [folder / file]:
        stub = stub_in(path)
        if stub is not None:
            return (
                f"is not there yet: {path} is {stub}. Fetch the file with `git lfs pull` or"
                " `hf download`"
            )
    return None


def stub_in(path: Path) -> str | None:
    """What stands in the place of a file of a model; None for the file itself."""
    if path.is_symlink() and not path.exists():
        return "a link to a file that is away"
    if not path.is_file():
        return None
    with path.open("rb") as content:
        head = content.read(60).decode("latin-1").strip().lower()
    if not head and path.suffix.lower() != GGUF:
        return "an empty file"
    stubs = (stub for beginning, stub in STUBS.items() if head.startswith(beginning.lower()))
    return next(stubs, None)


def fault_of_tokenizer(name: str, revision: str | None) -> str | None:
    """Why the files of a tokenizer cannot be read here."""
    files = tokenizer_files(name, revision)
    if "tokenizer.json" in files or "tokenizer.model" not in files or is_sentencepiece_available():
        return None
    path = stored_file(name, "tokenizer.model", revision)
    if (
        path is None or path.read_bytes()[:1] != b"\n"
    ):  # which every SentencePiece model begins with
        return None
    return (
        "is a SentencePiece model alone (tokenizer.model). Run `pip install sentencepiece"
        " protobuf`, or copy tokenizer.json there from the model that it was made from"
    )


def fault_of_gguf(folder: Path, file: str) -> str | None:
    """Why a file of a folder or of a hub repository cannot be read as GGUF."""
    if folder.is_dir() and not (folder / file).is_file():
        there = gguf_files(folder) or "none"
        return f"has no file {file} (GGUF files there: {there}). Correct the name"
    if PART.search(file):
        return f"is not whole in {file}. Join the parts with `llama-gguf-split --merge`"
    if not file.endswith(GGUF):
        return (
            f"is in {file}, which transformers {transformers.__version__} would know by its ending."
            f" Rename it to end in {GGUF}"
        )
    if not is_gguf_available():
        return "is read by the package `gguf`. Run `pip install '.[gguf]'` in GistGate's clone"
    return None


def fault_of_model(name: str, revision: str | None) -> str | None:
    """Why a folder or hub repository holds no model that continues texts."""
    path = Path(name)
    place = stored_file(name, "config.json", revision)
    if path.is_dir() and not any(path.glob("model*.safetensors")):
        fault = fault_of_empty(path, has_config=place is not None)
        if fault is not None:
            return fault
    config = {} if place is None else read_json(place)
    return fault_of_kind(config) if isinstance(config, dict) else "has no object in config.json"


def fault_of_empty(folder: Path, has_config: bool) -> str | None:
    """What a folder without weights in safetensors files holds instead."""
    if (folder / ADAPTER).is_file():
        base = read_json(folder / ADAPTER).get("base_model_name_or_path")
        return (
            f"is an adapter of '{base}'. Merge both (PEFT: merge_and_unload, save_pretrained) and"
            " name the result"
        )
    weights = [*folder.glob("*/model*.safetensors"), *folder.glob("snapshots/*/model*.safetensors")]
    models = {str(path.parent) for path in weights}
    if models:
        names = sorted(models, key=lambda name: (len(name), name))
        return f"is a folder of models. Name one: {', '.join(names)}"
    if has_config:
        return None
    files = gguf_files(folder)
    if files:
        return f"holds GGUF files. Name one with its path: {files}"
    return "has no config.json. Name a folder as `save_pretrained` writes it"


def fault_of_kind(config: dict[str, Any]) -> str | None:
    """Why a model with this configuration does not continue texts here."""
    kind = config.get("model_type")
    if kind is not None and kind not in transformers.CONFIG_MAPPING:
        if "auto_map" in config:
            return "runs code of its makers, which GistGate never does. Name another model"
        return (
            f"is a '{kind}', which transformers {transformers.__version__} does not know. Install a"
            " newer one, or name another model"
        )
    heads = config.get("architectures") or []
    continues = kind not in CONFIG_MAPPING_NAMES or kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    judges = any(head.endswith(JUDGING_HEADS) for head in heads)
    if judges or config.get("is_encoder_decoder") or not continues:
        described = heads[0] if heads else kind
        return f"is a {described}, which does not continue texts. Name a causal language model"
    return None


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
    # Damaged files, a hub out of reach and unknown architectures fail in many ways.
    except Exception as error:
        if is_out_of_memory(error):
            raise
        # The hub may have sent the configuration by now.
        check_place(role, name, gguf_file, revision)
        place = name if gguf_file is None else str(Path(name) / gguf_file)
        raise UserError(
            f"The {role} '{place}' could not be loaded ({first_line(error)})."
            f" {load_remedy(place, error)}"
        ) from error


def load_remedy(name: str, error: Exception) -> str:
    """What helps after `error`; transformers hides the hub's own error behind its own."""
    text = messages(error)
    if isinstance(error, ImportError) or "pip install" in text:
        return "Install what the message names, or leave out what asks for it."
    if any(sign in text for sign in WRONG_OPTIONS):
        return "Correct the options that go with it."
    if "no file named model.safetensors" in text and not pickled_files(Path(name)):
        return "The folder holds no weights (model.safetensors). Copy them there."
    if "use_safetensors" in text or "no file named model.safetensors" in text:
        return "Only weights in safetensors files are read, because pickled ones may run code."
    if Path(name).is_file():
        return "The file is damaged or incomplete; fetch it again."
    return folder_remedy(name, text) if Path(name).is_dir() else hub_remedy(name, text)


def folder_remedy(name: str, text: str) -> str:
    """What helps after messages about the files of a folder."""
    if "tokenizer" in text and set(tokenizer_files(name)) <= {"tokenizer_config.json"}:
        return (
            "Copy tokenizer.json and tokenizer_config.json there from the model that it was made"
            " from."
        )
    return "Its files are damaged or incomplete; restore the folder or write it again."


def hub_remedy(name: str, text: str) -> str:
    """What helps after messages about a model on the hub."""
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


def pickled_files(folder: Path) -> list[Path]:
    """The files of a folder with weights that are never read; a repository of the hub may have
    some.
    """
    if not folder.is_dir():
        return [folder]
    return [path for path in folder.glob("*") if path.suffix in (".bin", ".pt", ".pth", ".ckpt")]


def messages(error: BaseException | None) -> str:
    """Names and messages of an error and of all errors behind it, in small letters."""
    text = ""
    while error is not None:
        text = f"{text} {type(error).__name__} {error}".lower()
        error = error.__cause__ or error.__context__
    return text
