"""The name by which task files in use call `gistgate.tasks.free_text`.

A certificate holds a fingerprint of the files of its task, so data/tasks/letters.yaml and its
siblings keep this name.
"""

from gistgate.tasks.free_text import descriptions, letters, passages, process_results

__all__ = ["descriptions", "letters", "passages", "process_results"]
