"""Segment acceptance: a whole piece of reasoning is judged by its meaning (arXiv 2602.03708)."""
