"""The version of the package, in its one place: builds and releases read it from this file. Imports nothing."""

__version__ = "0.1.0"
