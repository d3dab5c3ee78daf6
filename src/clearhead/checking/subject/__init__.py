"""The subject of a check: found, made, copied and called."""
