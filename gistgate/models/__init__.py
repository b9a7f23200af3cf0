"""From names, folders and options to models and to a decoder."""
