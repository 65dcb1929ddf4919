/* libamdhip64 of the miniature: the entry points that HIP objects and the miniature's modules call.
 *
 * Debian 12 has the HIP runtime of ROCm 5.2, whose library name (libamdhip64.so.5) no wheel for
 * ROCm 7 asks for. This stand-in accepts every registration and answers as the real runtime does
 * on a machine without an AMD GPU: there is no device.
 */

#include <stddef.h>

enum { kSuccess = 0, kNoDevice = 100 };

int numa_available(void); /* from librocm_sysdeps_numa.so.1 */

/* Registration, called by the constructors that clang puts into every HIP object. */

void **__hipRegisterFatBinary(const void *wrapper) {
  static const void *last; /* callers only hand the address back */
  last = wrapper;
  return (void **)&last;
}

void __hipUnregisterFatBinary(void **handle) { (void)handle; }

void __hipRegisterFunction(void **handle, const void *host, char *device_name, const char *name,
                           unsigned thread_limit, void *tid, void *bid, void *block_size,
                           void *grid_size, int *warp_size) {
  (void)handle, (void)host, (void)device_name, (void)name, (void)thread_limit, (void)tid;
  (void)bid, (void)block_size, (void)grid_size, (void)warp_size;
}

/* Launching. */

typedef struct {
  unsigned x, y, z;
} Dim3;

int __hipPushCallConfiguration(Dim3 grid, Dim3 block, size_t shared, void *stream) {
  (void)grid, (void)block, (void)shared, (void)stream;
  return kNoDevice;
}

int __hipPopCallConfiguration(Dim3 *grid, Dim3 *block, size_t *shared, void **stream) {
  (void)grid, (void)block, (void)shared, (void)stream;
  return kNoDevice;
}

int hipLaunchKernel(const void *host, Dim3 grid, Dim3 block, void **args, size_t shared,
                    void *stream) {
  (void)host, (void)grid, (void)block, (void)args, (void)shared, (void)stream;
  return kNoDevice;
}

int hipGetLastError(void) { return kNoDevice; }

/* Questions. */

int hipGetDeviceCount(int *count) {
  (void)numa_available();
  *count = 0;
  return kNoDevice;
}

int hipRuntimeGetVersion(int *version) {
  *version = HIP_VERSION; /* given by make_therock.py */
  return kSuccess;
}
