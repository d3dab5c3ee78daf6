"""One way to compute per file. Each owns its refusals; none imports another."""
