#include <hip/hip_runtime.h>

#include "jax_plugins/rocm/kernels.h"

namespace miniature {
namespace {

__global__ void FillKernel(float value, float* out, uint32_t count) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = value;
}

}  // namespace

int Fill(float value, float* out, uint32_t count, void* stream) {
  const dim3 blocks((count + 255) / 256);
  FillKernel<<<blocks, 256, 0, static_cast<hipStream_t>(stream)>>>(value, out, count);
  return hipGetLastError();
}

}  // namespace miniature
