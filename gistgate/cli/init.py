"""Write the files of a project in which `dvc repro` runs the whole pipeline for a pair and a
task.
"""

import inspect
import json
import os
import re
import shutil
import string
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

import gistgate
from gistgate.cli.options import Chat, System, Template, needing, plain_option, typed
from gistgate.core.files import write_atomic, write_text
from gistgate.core.utils import UserError
from gistgate.models.options import parse_template

OWN_TASK = "own"  # the task whose file is to be filled in
METHODS = ("exact", "prob-ratio", "autojudge")
"""Methods of a new project; its params.yaml has the others as comments."""
LESSONS = 1000  # prompts whose answers a trained draft learns
TOKENS = 8192  # that such a draft may propose
SAMPLES = {
    "train": {"question": "Tom has 5 apples and buys 4 more. How many has he?", "answer": "9"},
    "test": {"question": "Ann has 8 pears and eats 2 of them. How many are left?", "answer": "6"},
}
"""By split: a document that shows its form."""
HERE = Path(__file__).parent
SHARED = HERE / "shared"
"""Links to the repository's own graph, parameters and tasks."""
TASKS = "data/tasks"  # folder of a project's task
MADE = "data/world/"  # folder of documents that the pipeline makes itself


@dataclass(frozen=True, kw_only=True)
class Project:
    """What a new project is about; each field is an option of `gistgate init`."""

    folder: Annotated[Path, typer.Argument(help="New folder for the project.")]
    target: Annotated[str, plain_option("Target model: hub id, folder or GGUF file.")]
    draft: Annotated[str | None, plain_option("Draft model: hub id, folder or GGUF file.")] = None
    drafter: Annotated[
        str | None,
        plain_option("In place of a draft model: suffix or lookup, which copy from the text."),
    ] = None
    task: Annotated[
        str | None,
        plain_option("gsm8k, a YAML file, or any lm-eval task; default: a file to fill in."),
    ] = None
    target_revision: Annotated[str | None, plain_option("Revision of the target on the hub.")] = (
        None
    )
    draft_revision: Annotated[str | None, plain_option("Revision of the draft on the hub.")] = None
    target_gguf: Annotated[
        str | None, plain_option("GGUF file in the target's folder or repository.")
    ] = None
    draft_gguf: Annotated[
        str | None, plain_option("GGUF file in the draft's folder or repository.")
    ] = None
    quantise: Annotated[
        str | None,
        plain_option(
            "Weights of the target: none, int8, int4, w8a8 or gguf (as in its file); default: gguf"
            " for a GGUF file where there is no GPU, else none."
        ),
    ] = None
    quantise_draft: Annotated[
        str | None, plain_option("Weights of the draft, with the same default.")
    ] = None
    train_draft: Annotated[
        bool,
        plain_option("Cut the draft, or without one the target, and train it on the answers."),
    ] = False
    dtype: Annotated[str, plain_option("Type of the weights: float32, bfloat16 or float16.")] = (
        "bfloat16"
    )
    device_map: Annotated[str | None, plain_option("Passed to from_pretrained, such as auto.")] = (
        None
    )
    chat: Chat = False
    system: System = None
    template: Template = ()  # type: ignore[assignment]

    @property
    def name(self) -> str:
        """The project's name, which is that of its folder."""
        return self.folder.resolve().name

    @property
    def pair(self) -> str:
        """The name of the pair's file."""
        return re.sub(r"[^\w.-]+", "-", self.name)

    def check(self) -> None:
        """Refuse (UserError) what contradicts itself, and a folder with files in it."""
        from gistgate.models.loading import DTYPES, RETRIEVAL
        from gistgate.models.packed import check_kind

        if self.drafter not in (None, *RETRIEVAL):
            raise UserError(
                f"There is no drafter '{self.drafter}' for a project. Use one of:"
                f" {', '.join(RETRIEVAL)}."
            )
        has_model = bool(self.draft) or self.train_draft
        if has_model == bool(self.drafter):
            raise UserError(
                "A project needs --draft, --train-draft or both, or else --drafter suffix or"
                " lookup."
            )
        if self.dtype not in DTYPES[1:]:
            raise UserError(
                f"There is no dtype '{self.dtype}'. Use one of: {', '.join(DTYPES[1:])}."
            )
        check_kind(self.quantise or "none")
        check_kind(self.quantise_draft or "none")
        if self.quantise_draft not in (None, "none") and not has_model:
            raise UserError(
                "--quantise-draft rounds the weights of a draft model. Name one with --draft, or"
                " leave it out."
            )
        if self.system is not None and not self.chat:
            raise UserError("A system text needs a chat. Add --chat, or leave --system out.")
        if self.folder.is_file() or any(self.folder.glob("*")):
            raise UserError(f"{self.folder} is not empty. Name a new folder for the project.")

    def pair_file(self) -> str:
        """The file of the pair, as YAML."""
        import yaml

        target = self.model_of(self.target, self.target_revision, self.target_gguf)
        target |= self.kept(target, self.quantise)
        models: dict[str, Any] = {"target": target}
        if self.drafter:
            models["drafter"] = self.drafter
        if self.draft or self.train_draft:
            models["draft"] = self.draft_entries(target)
        text: str = yaml.safe_dump(models, sort_keys=False)
        return text

    def draft_entries(self, target: dict[str, str]) -> dict[str, Any]:
        """The draft in the pair's file; one that is trained keeps a third of the layers."""
        draft: dict[str, Any] = {"dtype": self.dtype}
        kind = self.quantise_draft
        if self.draft:
            draft = self.model_of(self.draft, self.draft_revision, self.draft_gguf)
        if self.train_draft:
            draft |= {"of": "draft" if self.draft else "target"}
            draft |= cut_of(draft if self.draft else target)
            kind = kind or "none"  # no file holds the weights of a trained draft
        return draft | self.kept(draft, kind)

    def kept(self, model: dict[str, str], kind: str | None) -> dict[str, str]:
        """How the weights of a model are kept; where the user leaves it open, as other commands
        keep them.
        """
        import torch

        from gistgate.models.packed import GGUF

        is_packed = "gguf_file" in model and self.dtype == "bfloat16" and not self.device_map
        if kind is None and is_packed and not torch.cuda.is_available():
            kind = GGUF
        return {} if kind in (None, "none") else {"quantise": kind}

    def model_of(self, model: str, revision: str | None, gguf: str | None) -> dict[str, str]:
        """A model in the pair's file; a local folder by its absolute path, since stages run in the
        project.
        """
        from gistgate.models.places import check_place, placed

        name, place = placed(model, gguf)
        check_place("model", name, place.get("gguf_file"))
        if Path(name).is_dir():
            name = str(Path(name).resolve())
        how = {"device_map": self.device_map, "dtype": self.dtype}
        entries = {"model": name, "revision": revision, **place, **how}
        return {key: value for key, value in entries.items() if value is not None}

    def parameters(self, task: str) -> str:
        """The repository's parameters for the pair and a task, no calibration prompt of which was
        ever judged.
        """
        text = with_few_methods(shared("params.yaml"))
        values: dict[str, Any] = {
            "pair": self.pair,
            "task": task,
            "prompting.num_fewshot": None,
            "prompting.chat_template": self.chat,
            "prompting.system": self.system,
            "prompting.arguments": parse_template(self.template),
            "prompts.draw": 1,
            "prompts.draft": LESSONS if self.train_draft else 0,
            "decoding.batch_size": 32,
            "decoding.workers": 1,
        }
        for key, value in values.items():
            text = with_value(text, key, json.dumps(value))
        return text


def cut_of(model: dict[str, Any]) -> dict[str, int]:
    """A third of the layers of a model, and of a large vocabulary the tokens that answers need."""
    from transformers import AutoConfig

    from gistgate.models.places import or_refuse

    name = model["model"]
    place = {key: model[key] for key in ("revision", "gguf_file") if key in model}
    config = or_refuse(
        "model", name, lambda: AutoConfig.from_pretrained(name, **place), **place
    ).get_text_config()
    kept = {"layers": max(1, config.num_hidden_layers // 3)}
    if config.vocab_size > 2 * TOKENS:
        kept["vocabulary"] = TOKENS
    return kept


def init(**given: Any) -> None:
    """Write a small project for a pair and a task, in which `dvc repro` makes a certified gate."""
    project = Project(**given)
    project.check()
    task = project.task or OWN_TASK
    contents = contents_of(project, task)
    for place, content in sorted(contents.items()):
        if isinstance(content, Path):
            write_atomic(project.folder / place, partial(shutil.copyfile, content))
        else:
            write_text(project.folder / place, content)
        typer.echo(project.folder / place)
    fill = f" Fill in {TASKS} first." if task == OWN_TASK else ""
    typer.echo(
        f"The project is written.{fill} Run `dvc repro report export` in {project.folder}; its"
        " README.md says more."
    )


typed(init, inspect.signature(Project, eval_str=True).parameters.values())


def contents_of(project: Project, task: str) -> dict[str, str | Path]:
    """The texts of a project's files, or the files that are copied, by their places in it."""
    pair = project.pair_file()
    extras = "pipeline,gguf" if "gguf_file:" in pair else "pipeline"
    dvc = "[core]\n    analytics = false\n"
    if not any((parent / ".git").exists() for parent in project.folder.resolve().parents):
        dvc += "    no_scm = true\n"
    name = re.sub(r"\.ya?ml$", "", Path(task).name)
    return {
        **task_files(task),
        f"models/pairs/{project.pair}.yaml": pair,
        ".dvc/config": dvc,
        ".gitignore": filled("gitignore"),
        "README.md": filled("README.md", name=project.name, pair=project.pair),
        "dvc.yaml": without_code(shared("graph.yaml")),
        "params.yaml": project.parameters(name),
        "requirements.txt": f"gistgate[{extras}]=={gistgate.__version__}\n",
    }


def shared(name: str) -> str:
    """The text of one of the repository's own files, which come with the package."""
    return (SHARED / name).read_text(encoding="utf-8")


def filled(template: str, /, **values: str) -> str:
    """A template with its values put in."""
    text = (HERE / f"templates/{template}.template").read_text(encoding="utf-8")
    return string.Template(text).substitute(values)


def without_code(graph: str) -> str:
    """The graph without dependencies on source files: a project depends on an installed version
    instead.
    """
    graph = re.sub(r",\s+(gistgate|pipeline)(/[\w./]+)?(?=[,\]])", "", graph)
    return graph.replace("deps: [", "deps: [requirements.txt, ")


def with_value(text: str, key: str, value: str) -> str:
    """The text of params.yaml with another value of `key`, "block.name" or "name"."""
    block, _, name = key.rpartition(".")
    start = text.index(f"\n{block}:\n") if block else 0
    entry = re.compile(rf"^( *{name}:) +\S+", re.MULTILINE).search(text, start)
    assert entry is not None, f"params.yaml has no {key}"
    return f"{text[: entry.start()]}{entry[1]} {value}{text[entry.end() :]}"


def with_few_methods(text: str) -> str:
    """The parameters with all methods but `METHODS` as comments, so that who wants them takes the
    marks away.
    """

    def commented(method: re.Match[str]) -> str:
        return method[0] if method[1] in METHODS else re.sub("(?m)^  ", "  # ", method[0])

    start = text.index("\nmethods:\n")
    end = text.index("\n\n", start) + 1
    methods = re.sub(r"(?m)^  ([\w-]+):.*\n(   .*\n)*", commented, text[start:end])
    return text[:start] + methods + text[end:]


def task_files(task: str) -> dict[str, str | Path]:
    """The files of a task: those to be filled in, copies, or for a task of lm-eval a note, because
    DVC wants the folder.
    """
    if task == OWN_TASK:
        files: dict[str, str | Path] = {f"{TASKS}/{task}.yaml": filled("task.yaml", task=task)}
        for split, sample in SAMPLES.items():
            files[f"{TASKS}/documents/{split}.jsonl"] = json.dumps(sample) + "\n"
        return files
    is_file = task.endswith((".yaml", ".yml"))
    path = Path(task) if is_file else SHARED / f"tasks/{task}.yaml"
    if is_file or path.exists():
        return copies(path)
    with needing("pipeline"):
        from gistgate.lm_eval.files import entry_of
    entry_of(task, None)
    note = f"The task {task} is lm-eval's own. A file {task}.yaml in this folder replaces it.\n"
    return {f"{TASKS}/README.md": note}


def copies(path: Path) -> dict[str, str | Path]:
    """The file of a task with all that it is made of, its documents included; refuses (UserError)
    what the pipeline would not find.
    """
    with needing("pipeline"):
        from gistgate.lm_eval.files import (
            NAME,
            config_of,
            data_names,
            files_of,
            moved_documents,
            with_places,
        )
    if not path.is_file():
        raise UserError(f"The task file {path} is missing. Correct the path.")
    text = path.read_text(encoding="utf-8")
    name = NAME.search(text)  # None: an included file names it
    if name and name[1] != path.stem:
        raise UserError(
            f"The task in {path} is called '{name[1]}'. Rename the file to {name[1]}{path.suffix}."
        )
    names, documents = moved_documents(path)
    for place in data_names(config_of(path)):
        if place not in names and not place.startswith(MADE):
            warnings.warn(
                f"The task reads {place}, which is not here. Put it into the project under that"
                " name before you run it.",
                stacklevel=2,
            )
    contents: dict[str, str | Path] = dict(documents)
    for part in files_of(path):
        inside = Path(os.path.relpath(part, path.parent)).as_posix()
        if inside.startswith("../"):
            raise UserError(
                f"The task file {path} takes in {part}, which lies outside its folder. Copy it into"
                " that."
            )
        text = part.read_text(encoding="utf-8")
        if part.suffix in (".yaml", ".yml"):
            text = with_places(text, names)
        place = f"{path.stem}.yaml" if part == path else inside
        contents[f"{TASKS}/{place}"] = text
    return contents
