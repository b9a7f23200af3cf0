"""EleutherAI's lm-evaluation-harness: GistGate as one of its models, and its tasks as what defines
meaning.
"""
