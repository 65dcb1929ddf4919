// What a plugin module offers to jaxlib: {name of the custom call: capsule of its host function}.

#ifndef MINIATURE_JAXLIB_ROCM_REGISTRATIONS_H_
#define MINIATURE_JAXLIB_ROCM_REGISTRATIONS_H_

#include <Python.h>

namespace miniature {

template <typename Function>
PyObject* Registrations(const char* name, Function* function) {
  PyObject* capsule = PyCapsule_New(reinterpret_cast<void*>(function), nullptr, nullptr);
  if (capsule == nullptr) return nullptr;
  return Py_BuildValue("{s:N}", name, capsule);
}

}  // namespace miniature

#endif  // MINIATURE_JAXLIB_ROCM_REGISTRATIONS_H_
