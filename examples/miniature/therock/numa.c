/* librocm_sysdeps_numa: ROCm trees bring such copies of system libraries, below lib/rocm_sysdeps. */

int numa_available(void) { return -1; }
