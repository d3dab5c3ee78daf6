"""The version that is installed, which its metadata says."""

from importlib.metadata import version

__version__ = version("clearhead")
