"""Moving everything from one store to another, by the store port alone: any two stores will do, also a user's own."""

from outlast.copying.copying import COPIER, Copied, Copying, Progress

__all__ = ["COPIER", "Copied", "Copying", "Progress"]
