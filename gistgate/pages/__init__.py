"""Self-contained HTML pages: one file without network access, which a browser opens from disk."""

from gistgate.pages.runs import Run, record, strict_run
from gistgate.pages.trace import trace_page

__all__ = ["Run", "record", "strict_run", "trace_page"]
