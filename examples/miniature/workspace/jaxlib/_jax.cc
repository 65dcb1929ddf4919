// The extension module of the miniature's jaxlib.

#include <Python.h>

#include <vector>

namespace {

// Reads a sequence of numbers; on failure an exception is set and false is returned.
bool ReadNumbers(PyObject* object, std::vector<double>* numbers) {
  PyObject* items = PySequence_Fast(object, "expected a sequence of numbers");
  if (items == nullptr) return false;
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(items);
  for (Py_ssize_t i = 0; i < count; ++i) {
    numbers->push_back(PyFloat_AsDouble(PySequence_Fast_GET_ITEM(items, i)));
  }
  Py_DECREF(items);
  return PyErr_Occurred() == nullptr;
}

PyObject* Dot(PyObject*, PyObject* args) {
  PyObject *left_object, *right_object;
  if (!PyArg_ParseTuple(args, "OO", &left_object, &right_object)) return nullptr;
  std::vector<double> left, right;
  if (!ReadNumbers(left_object, &left) || !ReadNumbers(right_object, &right)) return nullptr;
  if (left.size() != right.size()) {
    PyErr_SetString(PyExc_ValueError, "vectors of different length");
    return nullptr;
  }
  double sum = 0;
  for (size_t i = 0; i < left.size(); ++i) sum += left[i] * right[i];
  return PyFloat_FromDouble(sum);
}

PyMethodDef kMethods[] = {
    {"dot", Dot, METH_VARARGS, "The dot product of two sequences of numbers."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef kModule = {
    PyModuleDef_HEAD_INIT, "_jax", nullptr, 0, kMethods, nullptr, nullptr, nullptr, nullptr,
};

}  // namespace

PyMODINIT_FUNC PyInit__jax() { return PyModuleDef_Init(&kModule); }
