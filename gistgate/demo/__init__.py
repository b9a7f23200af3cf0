"""A local page that shows loose and strict decoding side by side while the tokens arrive; needs the extra `demo`."""
