// The host side of the kernels: each call queues one kernel on a stream and returns a hipError_t.

#ifndef MINIATURE_JAXLIB_ROCM_KERNELS_H_
#define MINIATURE_JAXLIB_ROCM_KERNELS_H_

#include <cstdint>

namespace miniature {

// Fills out[0..count) with numbers that depend on the seed and the position alone.
int CounterHash(uint32_t seed, uint32_t* out, uint32_t count, void* stream);

// Scales a vector to length 1, given its squared length.
int Normalize(float squared_length, float* values, uint32_t count, void* stream);

}  // namespace miniature

#endif  // MINIATURE_JAXLIB_ROCM_KERNELS_H_
