"""From names, folders and numbers to a decoder."""
