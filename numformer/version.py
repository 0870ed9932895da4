"""The version of this library, which every checkpoint names."""

__version__ = "0.1.0"
