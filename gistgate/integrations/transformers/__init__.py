"""GistGate behind `model.generate` of plain transformers.

A gate folder carries a `custom_generate/` with everything that decoding needs, generated from the library's modules, so
that it runs where gistgate is not installed:

    model.generate(
        **inputs, custom_generate=FOLDER, trust_remote_code=True, draft_model=DRAFT, gate=FOLDER, tokenizer=TOKENIZER
    )
"""
