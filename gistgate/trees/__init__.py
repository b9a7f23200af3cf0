"""Tree drafts: how a model reads one, which path of it stays, and the drafters that grow one."""
