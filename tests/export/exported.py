"""What the tests of the exported gate ask of it."""

PROMPTS = ["Q: 12 + 1?\nA:", "Anna has three red apples and buys two.", "x"]
EOS, PAD = 2, 0
RISKS = {0.03: 0.2, 0.05: 0.3}
"""Certified budget -> knob."""
