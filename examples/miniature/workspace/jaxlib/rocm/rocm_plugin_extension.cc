// Module rocm_plugin_extension: what the HIP runtime says about this machine.

#include <Python.h>
#include <hip/hip_runtime_api.h>

namespace {

PyObject* DeviceCount(PyObject*, PyObject*) {
  int count = 0;
  const hipError_t error = hipGetDeviceCount(&count);
  if (error == hipErrorNoDevice) return PyLong_FromLong(0);
  if (error != hipSuccess) return PyErr_Format(PyExc_RuntimeError, "HIP error %d", error);
  return PyLong_FromLong(count);
}

PyObject* RuntimeVersion(PyObject*, PyObject*) {
  int version = 0;
  const hipError_t error = hipRuntimeGetVersion(&version);
  if (error != hipSuccess) return PyErr_Format(PyExc_RuntimeError, "HIP error %d", error);
  return PyLong_FromLong(version);
}

PyMethodDef kMethods[] = {
    {"device_count", DeviceCount, METH_NOARGS, "How many AMD GPUs the HIP runtime sees."},
    {"runtime_version", RuntimeVersion, METH_NOARGS, "The version number of the HIP runtime."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef kModule = {
    PyModuleDef_HEAD_INIT,
    "rocm_plugin_extension",
    nullptr,
    0,
    kMethods,
    nullptr,
    nullptr,
    nullptr,
    nullptr,
};

}  // namespace

PyMODINIT_FUNC PyInit_rocm_plugin_extension() { return PyModuleDef_Init(&kModule); }
