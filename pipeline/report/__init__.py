"""Summary, tables, figures and model card of a finished run."""
