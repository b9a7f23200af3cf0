"""Parts that most requests do without: trees, guards, retrieval, segments, and a second reading of the draft."""
