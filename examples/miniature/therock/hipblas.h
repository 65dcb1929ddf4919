/* The part of hipBLAS that the miniature's stand-in has. */

#ifndef HIPBLAS_H
#define HIPBLAS_H

typedef void *hipblasHandle_t;

typedef enum {
  HIPBLAS_STATUS_SUCCESS = 0,
  HIPBLAS_STATUS_NOT_INITIALIZED = 1,
} hipblasStatus_t;

#ifdef __cplusplus
extern "C" {
#endif

hipblasStatus_t hipblasCreate(hipblasHandle_t *handle);
hipblasStatus_t hipblasDestroy(hipblasHandle_t handle);

#ifdef __cplusplus
}
#endif

#endif
