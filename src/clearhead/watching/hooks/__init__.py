"""The ways in which a PyTorch model attends, one a file: where a call is met, and how it is read as
a problem in the package's own terms.
"""
