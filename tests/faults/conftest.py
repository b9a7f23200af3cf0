"""Profiles of the fuzz tests: short in continuous integration, longer with `--hypothesis-profile=long`."""

from hypothesis import HealthCheck, settings

shared = {"deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]}
settings.register_profile("short", max_examples=60, **shared)
settings.register_profile("long", max_examples=20_000, **shared)
# Hypothesis loads a profile of its own, "ci", where the environment says so: only a named profile of ours stays.
if settings.get_current_profile_name() not in {"short", "long"}:
    settings.load_profile("short")
