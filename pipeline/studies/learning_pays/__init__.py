"""When a learned gate is worth its training."""
