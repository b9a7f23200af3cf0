"""The pair of models: loading one, and training the embedded one on its world of word problems."""
