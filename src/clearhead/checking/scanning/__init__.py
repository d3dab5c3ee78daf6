"""Classes and functions of a package that could attend, found and tried."""
