"""The large table: every acceptance rule beside the core methods."""
