"""Published files whose code has changed since, or is not known.

python -m pipeline.common.stale    lists them (`make stale`)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gistgate.files import fingerprint, read_json
from pipeline.common.closure import ROOT
from pipeline.common.code import FILES, KEY, PARTS, code_fingerprint
from pipeline.common.paths import BENCHMARK_RESULTS, RESULTS

SHOWN = (".csv", ".jsonl", ".png")
"""Endings of published files that cannot name their code themselves."""


def stale(folders: tuple[Path, ...] = (RESULTS, BENCHMARK_RESULTS), root: Path = ROOT) -> dict[str, str]:
    """Published files whose code has changed since or is not known, each with the reason.

    Figures and tables belong to the JSON file that names their fingerprints.
    """
    found: dict[str, str] = {}
    shown: dict[str, str] = {}
    for path in sorted(path for folder in folders for path in folder.rglob("*.json")):
        content = read_json(path)
        if isinstance(content, dict) and "looks" in content and "head" in content:
            continue  # the ledger is a record and no result
        code = content.get(KEY) if isinstance(content, dict) else None
        if isinstance(code, dict):
            shown |= dict.fromkeys(code.get(FILES, {}).values(), path.as_posix())
        reason = why_stale(code, root)
        if reason:
            found[path.as_posix()] = reason
    for path in sorted(path for folder in folders for path in folder.rglob("*") if path.suffix in SHOWN):
        owner = shown.get(fingerprint(path))
        if owner is None:
            found[path.as_posix()] = "is named by no result, so that its code is not known"
        elif owner in found:
            found[path.as_posix()] = f"shows {owner}, which {found[owner]}"
    return found


def why_stale(code: Any, root: Path = ROOT) -> str | None:
    """Why a result does not belong to the present code; None where it does."""
    if not isinstance(code, dict):
        return "names no code: it is older than the fingerprints"
    if PARTS in code:
        reasons = {key: why_stale(part, root) for key, part in code[PARTS].items()}
        return next((f"holds {key}, which {reason}" for key, reason in reasons.items() if reason), None)
    if code.get("changed"):
        return f"was made while {code['changed'][0]} changed, so that its code is not known for sure"
    gone = [name for name in code["modules"] if not root.joinpath(*name.split(".")).with_suffix(".py").is_file()]
    if gone:
        return f"was made by {gone[0]}, which does not exist any more"
    if code_fingerprint(*sorted(code["modules"]), root=root) != code["fingerprint"]:
        return f"was made by other code than the present {code['modules'][-1]} and what it imports"
    return None


def main() -> None:
    """List the published files that are older than their code."""
    found = stale()
    for path, reason in found.items():
        print(f"{path} {reason}")
    print(f"{len(found)} published files are older than their code." if found else "No published file is older.")


if __name__ == "__main__":
    from pipeline.common.entry import run

    run(main)
