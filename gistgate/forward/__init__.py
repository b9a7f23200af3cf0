"""Reading a model: its cache, its states, and how far each row has been read."""
