"""What differs between the generations of JAX's ROCm build, as far as the miniature has it.

These are the newest; a tree of an earlier generation has other values here and other rc files.
"""

# The headers that the local route's toolchain lists are those of one clang, as XLA's
# rocm_configure.bzl has it from JAX 0.10.2 on; "" asks the clang, as it did up to 0.10.1.
LOCAL_CLANG_HEADERS = "18"

# What the ROCm toolchain links with, where the machine's own compiler does.
LOCAL_LINKER = "lld"
