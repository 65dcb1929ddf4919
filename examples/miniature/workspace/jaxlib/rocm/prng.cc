// Module _prng: random numbers on an AMD GPU.

#include <Python.h>

#include "jaxlib/rocm/kernels.h"
#include "jaxlib/rocm/registrations.h"

namespace {

PyObject* Registrations(PyObject*, PyObject*) {
  return miniature::Registrations("hip_counter_hash", &miniature::CounterHash);
}

PyMethodDef kMethods[] = {
    {"registrations", Registrations, METH_NOARGS, "Custom calls by name."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef kModule = {
    PyModuleDef_HEAD_INIT, "_prng", nullptr, 0, kMethods, nullptr, nullptr, nullptr, nullptr,
};

}  // namespace

PyMODINIT_FUNC PyInit__prng() { return PyModuleDef_Init(&kModule); }
