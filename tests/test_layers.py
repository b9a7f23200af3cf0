"""The packages of the library lie in layers: none imports, in whatever way, one that imports it."""

import ast
from collections import defaultdict
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]


def imported(file: Path) -> set[str]:
    """The modules of the library that a file imports, also inside functions and for types alone."""
    modules = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "gistgate":
            modules.update(f"gistgate.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gistgate."):
            modules.add(str(node.module))
    return modules


def test_imports_go_down_alone():
    graph: dict[str, set[str]] = defaultdict(set)
    for file in (ROOT / "gistgate").rglob("*.py"):
        package = file.relative_to(ROOT / "gistgate").parts[0].removesuffix(".py")
        graph[package] |= {module.split(".")[1] for module in imported(file)} - {package}
    order = list(TopologicalSorter(graph).static_order())  # refuses a circle, and names it
    assert order.index("core") < order.index("certificates") < order.index("cli")
    assert not {"cli", "lm_eval", "certify"} & (graph["certificates"] | graph["tasks"])
