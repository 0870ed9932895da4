"""The version of this library, which every checkpoint records."""

__version__ = "0.1.0"
