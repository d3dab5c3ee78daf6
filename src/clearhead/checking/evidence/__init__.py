"""Measurements of a subject, which judge nothing."""
