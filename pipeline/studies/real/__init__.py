"""A pair of pretrained models through the whole pipeline."""
