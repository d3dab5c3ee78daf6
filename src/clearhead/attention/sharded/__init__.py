"""Attention over tokens that ranks share: one way to communicate a file."""
