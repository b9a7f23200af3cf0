"""The stages of the DVC pipeline, one thin module each, run as `python -m pipeline.<stage>`; helpers beside them."""
