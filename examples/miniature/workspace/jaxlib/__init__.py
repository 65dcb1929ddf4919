"""The miniature's jaxlib: one extension module that can do a little arithmetic."""

from jaxlib._jax import dot
from jaxlib.version import __version__

__all__ = ["__version__", "dot"]
