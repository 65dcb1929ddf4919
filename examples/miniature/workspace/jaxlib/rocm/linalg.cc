// Module _linalg: linear algebra on an AMD GPU, with hipBLAS.

#include <Python.h>
#include <hipblas/hipblas.h>

#include "jaxlib/rocm/kernels.h"
#include "jaxlib/rocm/registrations.h"

namespace {

PyObject* Registrations(PyObject*, PyObject*) {
  return miniature::Registrations("hip_normalize", &miniature::Normalize);
}

// Whether hipBLAS starts; it does not without a GPU.
PyObject* HasBlas(PyObject*, PyObject*) {
  hipblasHandle_t handle;
  if (hipblasCreate(&handle) != HIPBLAS_STATUS_SUCCESS) Py_RETURN_FALSE;
  hipblasDestroy(handle);
  Py_RETURN_TRUE;
}

PyMethodDef kMethods[] = {
    {"registrations", Registrations, METH_NOARGS, "Custom calls by name."},
    {"has_blas", HasBlas, METH_NOARGS, "Whether hipBLAS starts on this machine."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef kModule = {
    PyModuleDef_HEAD_INIT, "_linalg", nullptr, 0, kMethods, nullptr, nullptr, nullptr, nullptr,
};

}  // namespace

PyMODINIT_FUNC PyInit__linalg() { return PyModuleDef_Init(&kModule); }
