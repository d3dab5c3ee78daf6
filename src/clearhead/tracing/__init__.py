"""The stages of one call of attention, with their numbers."""
