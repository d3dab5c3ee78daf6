"""The implementations of attention in PyTorch models, one module each.

Each module intercepts the calls of one implementation and reads them as a `Problem`.
"""
