"""Which plugins this jaxlib looks for: the packages a ROCm wheel may be called."""

PLUGINS = ("jax_rocm10_plugin", "jax_rocm7_plugin", "jax_rocm60_plugin")
