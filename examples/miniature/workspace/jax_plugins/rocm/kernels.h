// The host side of the kernels: each call queues one kernel on a stream and returns a hipError_t.

#ifndef MINIATURE_JAX_PLUGINS_ROCM_KERNELS_H_
#define MINIATURE_JAX_PLUGINS_ROCM_KERNELS_H_

#include <cstdint>

namespace miniature {

int Fill(float value, float* out, uint32_t count, void* stream);

// Adds the values up into *sum, one atomic addition per value.
int Reduce(const float* values, float* sum, uint32_t count, void* stream);

}  // namespace miniature

#endif  // MINIATURE_JAX_PLUGINS_ROCM_KERNELS_H_
