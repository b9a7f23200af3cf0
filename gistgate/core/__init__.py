"""One request from prompt to answer: reader, block, rule, gate, loop, decoder. Nothing here imports
the rest.
"""
