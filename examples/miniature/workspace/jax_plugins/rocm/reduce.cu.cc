#include <hip/hip_runtime.h>

#include "jax_plugins/rocm/kernels.h"

namespace miniature {
namespace {

__global__ void ReduceKernel(const float* values, float* sum, uint32_t count) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) atomicAdd(sum, values[i]);
}

}  // namespace

int Reduce(const float* values, float* sum, uint32_t count, void* stream) {
  const dim3 blocks((count + 255) / 256);
  ReduceKernel<<<blocks, 256, 0, static_cast<hipStream_t>(stream)>>>(values, sum, count);
  return hipGetLastError();
}

}  // namespace miniature
