"""Builder images: which one it is, what it has, how it is made, found and pushed."""

from rocwheel.image.contents import ImageFacts
from rocwheel.image.found import Found, inspect, obtain, superseded

__all__ = ["Found", "ImageFacts", "inspect", "obtain", "superseded"]
