"""The embedded world: word problems whose meaning is one number, told in two dialects."""
