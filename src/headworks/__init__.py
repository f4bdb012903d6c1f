"""Admission control for shared LLM engines."""

from headworks import compiled

__version__ = "0.1.0"
__all__ = ["IS_COMPILED", "RUNS_AS", "__version__"]

IS_COMPILED = compiled.prefer()
RUNS_AS = "compiled" if IS_COMPILED else "plain Python"
