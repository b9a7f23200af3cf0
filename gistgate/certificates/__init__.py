"""From a quality budget to a threshold with an exact bound."""
