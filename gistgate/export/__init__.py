"""A gate as a folder that plain transformers runs (custom_generate)."""
