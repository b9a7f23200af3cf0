"""The library stands on its base dependencies alone, and its public names exist."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import gistgate

ROOT = Path(__file__).parents[1]

ALONE = """
import importlib, importlib.abc, importlib.metadata, pkgutil, re, sys
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder

def closure(names):
    "Distributions that these need, extras left out."
    seen, todo = set(), list(names)
    while todo:
        name = re.sub(r"[-_.]+", "-", todo.pop()).lower()
        if name in seen:
            continue
        try:
            needs = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        seen.add(name)
        todo += [re.match(r"[\\w.-]+", need)[0] for need in needs if "extra ==" not in need]
    return seen

allowed = closure(["torch", "transformers", "safetensors", "typer"])
owners = importlib.metadata.packages_distributions()

class OnlyBase(importlib.abc.MetaPathFinder):
    "Everything that is neither ours, the standard library's nor a base dependency's is absent."
    find_distributions = staticmethod(PathFinder.find_distributions)
    def find_spec(self, name, path=None, target=None):
        top = name.split(".")[0]
        dists = {re.sub(r"[-_.]+", "-", dist).lower() for dist in owners.get(top, [])}
        if top == "pipeline" or (dists and top != "gistgate" and not dists & allowed):
            return None
        return PathFinder.find_spec(name, path, target)

sys.meta_path[:] = [BuiltinImporter, FrozenImporter, OnlyBase()]
for blocked in ("sklearn", "datasets", "mlflow", "lm_eval", "pytorch_lightning", "pipeline"):
    try:
        importlib.import_module(blocked)
    except ModuleNotFoundError:
        continue
    raise SystemExit(f"{blocked} was not blocked: this check checks nothing")

WITH_SCIPY = ["gistgate.certificates." + name for name in (
    "bernstein", "betting", "bounds", "calibration", "differences", "fixed_sequence", "looks", "loss_curve", "outcomes",
    "planning", "scope", "scores", "search", "tango")]
"Certification needs the extra `calibrate`; reading a certificate does not."

import gistgate
for module in pkgutil.walk_packages(gistgate.__path__, "gistgate."):
    if not module.name.startswith(("gistgate.integrations", *WITH_SCIPY)):
        importlib.import_module(module.name)
        print(module.name)
"""


GPU = """
import sys
for missing in ("pydantic", "datasets", "mlflow", "lm_eval", "dvc", "sklearn", "scipy", "omegaconf"):
    sys.modules[missing] = None
import benchmarks.gpu, benchmarks.gpu_checks, benchmarks.shapes, benchmarks.pair
"""


def test_what_measures_a_gpu_starts_where_the_pipeline_is_not_installed():
    done = subprocess.run([sys.executable, "-c", GPU], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_module_imports_with_base_dependencies_alone():
    done = subprocess.run([sys.executable, "-c", ALONE], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "gistgate.decoding.decoder" in done.stdout.split()


def test_importing_the_package_loads_nothing():
    code = "import sys, gistgate; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_public_names_exist():
    for name, module in gistgate.EXPORTS.items():
        assert getattr(gistgate, name) is getattr(importlib.import_module(module), name)


def test_the_library_never_imports_the_pipeline():
    found = [
        (path.relative_to(ROOT).as_posix(), name)
        for path in (ROOT / "gistgate").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else names_of(node))
        if name.split(".")[0] in ("pipeline", "tests", "benchmarks")
    ]
    assert not found


def names_of(node: ast.AST) -> list[str]:
    """Modules of an `import` statement."""
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
