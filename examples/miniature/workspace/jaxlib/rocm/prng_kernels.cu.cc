// Random numbers: a hash of the counter, so that every thread works on its own.

#include <hip/hip_runtime.h>

#include "jaxlib/rocm/kernels.h"

namespace miniature {
namespace {

__global__ void CounterHashKernel(uint32_t seed, uint32_t* out, uint32_t count) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  uint32_t x = i ^ seed;
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  out[i] = x ^ (x >> 16);
}

}  // namespace

int CounterHash(uint32_t seed, uint32_t* out, uint32_t count, void* stream) {
  const dim3 blocks((count + 255) / 256);
  CounterHashKernel<<<blocks, 256, 0, static_cast<hipStream_t>(stream)>>>(seed, out, count);
  return hipGetLastError();
}

}  // namespace miniature
