"""Verdicts on what was measured."""
