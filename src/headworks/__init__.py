"""Admission control for shared LLM engines."""

__version__ = "0.1.0"
__all__ = ["__version__"]
