// Linear algebra: one kernel that calls into the device library (rsqrt, from ROCm's bitcode).

#include <hip/hip_runtime.h>

#include "jaxlib/rocm/kernels.h"

namespace miniature {
namespace {

__global__ void NormalizeKernel(float squared_length, float* values, uint32_t count) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) values[i] = values[i] * rsqrtf(squared_length);
}

}  // namespace

int Normalize(float squared_length, float* values, uint32_t count, void* stream) {
  const dim3 blocks((count + 255) / 256);
  NormalizeKernel<<<blocks, 256, 0, static_cast<hipStream_t>(stream)>>>(squared_length, values,
                                                                        count);
  return hipGetLastError();
}

}  // namespace miniature
