"""The compiled engine: static memory, and rounds of drafting and verifying as compiled programs."""

from gistgate.core.decoder import ENGINES

ENGINES.data["compiled"] = "gistgate.compiled.session:CompiledEngine"  # imported on first use
