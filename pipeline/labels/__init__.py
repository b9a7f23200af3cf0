"""From mismatches to labels: whether a forced draft token keeps the meaning."""
