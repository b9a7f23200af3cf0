"""Target and draft: loading them, and training the embedded pair."""
