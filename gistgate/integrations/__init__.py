"""Bridges to other libraries. Each imports its library only when it is used; nothing in gistgate imports a bridge."""
