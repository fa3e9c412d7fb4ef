"""The version, in one place: read by the build without importing the package, and by the package at run time."""

__version__ = "0.1.0"
