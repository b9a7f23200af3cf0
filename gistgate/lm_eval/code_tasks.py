"""The name by which task files in use call `gistgate.tasks.code`, see `free_text` beside."""

from gistgate.tasks.code import process_results

__all__ = ["process_results"]
