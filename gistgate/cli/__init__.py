"""The commands of gistgate."""
