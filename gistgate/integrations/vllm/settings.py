"""What a server's configuration says about the gate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from gistgate.errors import UserError


@dataclass(frozen=True)
class Settings:
    """The value of "gistgate" in `--additional-config`; all values are plain JSON."""

    rule: str | None = None
    """Rule id; default: "autojudge" with a gate."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of the rule."""
    gate: str | None = None
    """Folder of a trained gate."""
    budget: float | None = None
    """Certified loss, as a share of prompts, when `settings` name no risk; default: the certificate's headline."""
    certificate: str | None = None
    """A certificate.json or its folder; rule and settings are those that it names for the budget."""
    strict: bool = False
    """True: nothing lossy can run, whatever else is asked for."""
    protected: tuple[int, ...] = ()
    """Further token ids that are never accepted loosely; ends of text and added tokens never are."""
    loop_guard: bool = True
    """Whether a request that begins to repeat itself is verified strictly for a while."""
    any_version: bool = False
    """True: a version of vLLM is tried that the plug-in was not tested with."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "protected", tuple(self.protected))
        lossy = (self.rule, self.gate, self.budget, self.certificate)
        if self.strict and (self.settings or any(value is not None for value in lossy)):
            raise UserError('gistgate: "strict" stands beside a rule, a gate, a budget or a certificate. Keep one.')
        if not self.strict and self.rule is None and self.gate is None and self.certificate is None:
            raise UserError('gistgate: name a "rule", a "gate" or a "certificate", or set "strict" to true.')
        if self.certificate is not None and (self.rule or self.settings):
            raise UserError("gistgate: a certificate names rule and settings itself. Leave these keys away.")
        if self.budget is not None and self.certificate is None and not self._asks_gate:
            raise UserError(
                "gistgate: a budget is kept by a certificate, which a rule or a risk that is named does not have. "
                "Leave the budget away, or name a gate or a certificate alone."
            )

    @property
    def _asks_gate(self) -> bool:
        """Whether the gate's own certificate says how loose decoding is."""
        return self.gate is not None and self.rule in (None, "autojudge") and "risk" not in self.settings


def read_settings(value: Any) -> Settings:
    """The configuration in a JSON object.

    Raises:
        UserError: it is no object, has unknown keys or values of another kind, or contradicts itself.
    """
    if not isinstance(value, Mapping):
        raise UserError(f"gistgate: the configuration is {value!r}, but a JSON object is needed.")
    known = [item.name for item in fields(Settings)]
    for name in value:
        if name not in known:
            raise UserError(f"gistgate: there is no key '{name}' in the configuration. Known: {', '.join(known)}.")
    for name in ("strict", "loop_guard", "any_version"):
        if not isinstance(value.get(name, False), bool):
            raise UserError(f"gistgate: '{name}' is {value[name]!r}, but it is true or false.")
    if not isinstance(value.get("settings", {}), dict):
        raise UserError("gistgate: 'settings' is no JSON object. Write for instance {\"theta\": 0.3}.")
    for name in ("rule", "gate", "certificate"):
        if not isinstance(value.get(name), str | None):
            raise UserError(f"gistgate: '{name}' is {value[name]!r}, but a text is needed.")
    if type(value.get("budget")) not in (int, float, type(None)):
        raise UserError(f"gistgate: 'budget' is {value['budget']!r}, but it is a share of prompts, such as 0.03.")
    protected = value.get("protected", ())
    if not isinstance(protected, list | tuple) or not all(type(token) is int for token in protected):
        raise UserError("gistgate: 'protected' is no list of token ids.")
    return Settings(**value)
