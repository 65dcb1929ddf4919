// The entry point of the PJRT plugin. Its struct starts as PJRT's does (size, extensions, version)
// and says by its size that it ends there; behind it the miniature has two calls of its own.

#include <cstddef>

#include "jax_plugins/rocm/kernels.h"

namespace {

struct ApiVersion {
  size_t struct_size;
  void* extension_start;
  int major_version;
  int minor_version;
};

struct Api {
  size_t struct_size;
  void* extension_start;
  ApiVersion version;
  decltype(&miniature::Fill) fill;
  decltype(&miniature::Reduce) reduce;
};

constexpr Api kApi = {
    offsetof(Api, fill), nullptr, {sizeof(ApiVersion), nullptr, 0, 1}, &miniature::Fill,
    &miniature::Reduce,
};

}  // namespace

extern "C" __attribute__((visibility("default"))) const void* GetPjrtApi() { return &kApi; }
