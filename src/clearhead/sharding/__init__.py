"""Which rank holds which tokens or heads, and collectives with gradients."""
