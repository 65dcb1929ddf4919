/* libhipblas of the miniature: as on a machine without a GPU, no handle can be made. */

enum { kNotInitialized = 1 };

int hipblasCreate(void **handle) {
  *handle = 0;
  return kNotInitialized;
}

int hipblasDestroy(void *handle) {
  (void)handle;
  return kNotInitialized;
}
