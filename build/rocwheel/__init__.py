"""rocwheel: from a ROCm tarball and a JAX source tree to tested, promoted ROCm JAX wheels."""

__version__ = "0.2.0"
