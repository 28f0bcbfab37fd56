// SPDX-License-Identifier: BSD-3-Clause
// Calls ops from eager Python without the cost of torch.ops, which matches arguments to schemas
// through generic conversions (about 4 us a call). Here a schema is parsed once. Plain arguments
// (exactly a Tensor or Parameter, int, float, bool, str, dtype, None, or a list or tuple of ints, as
// the schema requires) go to the dispatcher. For anything else, such as a Tensor subclass or a
// SymInt, the callable returns NotImplemented, and the caller uses torch.ops.
#include "python/eager.h"

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <memory>
#include <optional>

namespace baraquant {
namespace {

constexpr size_t kMaxArguments = 16;

struct Parameter {
  PyObject* name;  // interned
  c10::TypeKind kind;
  bool optional;
  std::optional<c10::IValue> default_value;
};

struct Overload {
  c10::OperatorHandle op;
  std::vector<Parameter> parameters;
  size_t positional;  // the parameters after this many are keyword-only
};

// The overloads of one op, tried in order.
using Overloads = std::vector<Overload>;

// Whether we can convert the schema's type. For torch a dtype is an int with a name of its own,
// which it calls the "real" type.
bool read_type(c10::TypePtr type, Parameter& parameter) {
  if (const auto optional = type->cast<c10::OptionalType>()) {
    parameter.optional = true;
    type = optional->getElementType();
  }
  parameter.kind = type->kind();
  switch (parameter.kind) {
    case c10::TypeKind::TensorType:
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
    case c10::TypeKind::FloatType:
    case c10::TypeKind::BoolType:
    case c10::TypeKind::ScalarTypeType:
    case c10::TypeKind::StringType:
      return true;
    case c10::TypeKind::ListType:
      return type->expectRef<c10::ListType>().getElementType()->kind() == c10::TypeKind::IntType;
    default:
      return false;
  }
}

std::optional<Overload> read_schema(const c10::OperatorHandle& op) {
  Overload overload{op, {}, 0};
  for (const c10::Argument& argument : op.schema().arguments()) {
    Parameter parameter{
        PyUnicode_InternFromString(argument.name().c_str()), {}, false, argument.default_value()};
    if (!read_type(argument.real_type(), parameter)) return std::nullopt;
    if (!argument.kwarg_only()) ++overload.positional;
    overload.parameters.push_back(std::move(parameter));
  }
  for (const c10::Argument& result : op.schema().returns()) {
    if (result.type()->kind() != c10::TypeKind::TensorType) return std::nullopt;
  }
  if (overload.parameters.size() > kMaxArguments) return std::nullopt;
  return overload;
}

// Pushes an int, or a list or tuple of ints, as the list that a schema's int[1] stands for.
bool push_ints(torch::jit::Stack& stack, PyObject* object) {
  c10::List<int64_t> values;
  const auto append = [&](PyObject* item) {
    if (!PyLong_CheckExact(item)) return false;
    int overflow = 0;
    values.push_back(PyLong_AsLongLongAndOverflow(item, &overflow));
    return overflow == 0;
  };
  if (PyLong_CheckExact(object)) {
    if (!append(object)) return false;
  } else if (PyTuple_CheckExact(object) || PyList_CheckExact(object)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i) {
      if (!append(PySequence_Fast_GET_ITEM(object, i))) return false;
    }
  } else {
    return false;
  }
  stack.emplace_back(std::move(values));
  return true;
}

// Pushes a plain argument. Returns false if it is not plain.
bool push(torch::jit::Stack& stack, PyObject* object, const Parameter& parameter) {
  if (object == Py_None) {
    if (parameter.optional) stack.emplace_back();
    return parameter.optional;
  }
  switch (parameter.kind) {
    case c10::TypeKind::TensorType:
      if (!THPVariable_CheckExact(object)) return false;
      stack.emplace_back(THPVariable_Unpack(object));
      return true;
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType: {
      if (!PyLong_CheckExact(object)) return false;
      int overflow = 0;
      const long long value = PyLong_AsLongLongAndOverflow(object, &overflow);
      stack.emplace_back(static_cast<int64_t>(value));
      return overflow == 0;
    }
    case c10::TypeKind::FloatType:
      if (!PyFloat_CheckExact(object)) return false;
      stack.emplace_back(PyFloat_AS_DOUBLE(object));
      return true;
    case c10::TypeKind::BoolType:
      if (!PyBool_Check(object)) return false;
      stack.emplace_back(object == Py_True);
      return true;
    case c10::TypeKind::ScalarTypeType:
      if (!THPDtype_Check(object)) return false;
      stack.emplace_back(static_cast<int64_t>(reinterpret_cast<THPDtype*>(object)->scalar_type));
      return true;
    case c10::TypeKind::StringType: {
      if (!PyUnicode_CheckExact(object)) return false;
      Py_ssize_t size = 0;
      const char* text = PyUnicode_AsUTF8AndSize(object, &size);
      if (text == nullptr) throw python_error();
      stack.emplace_back(std::string(text, static_cast<size_t>(size)));
      return true;
    }
    default:  // read_type takes lists besides
      return push_ints(stack, object);
  }
}

// Returns the position of a keyword among the parameters, or their number if there is none.
size_t find(const Overload& overload, PyObject* name) {
  size_t i = 0;
  for (; i < overload.parameters.size(); ++i) {
    PyObject* known = overload.parameters[i].name;
    if (known == name || PyUnicode_Compare(known, name) == 0) break;
  }
  return i;
}

// Fills the stack with the arguments in the schema's order. Returns false if they do not match the
// schema or one is not plain.
bool match(const Overload& overload, PyObject* const* args, size_t count, PyObject* keywords,
           torch::jit::Stack& stack) {
  if (count > overload.positional) return false;
  PyObject* given[kMaxArguments] = {};
  for (size_t i = 0; i < count; ++i) given[i] = args[i];
  const size_t named = keywords ? PyTuple_GET_SIZE(keywords) : 0;
  for (size_t i = 0; i < named; ++i) {
    const size_t position = find(overload, PyTuple_GET_ITEM(keywords, i));
    if (position == overload.parameters.size() || given[position]) return false;
    given[position] = args[count + i];
  }
  for (size_t i = 0; i < overload.parameters.size(); ++i) {
    const Parameter& parameter = overload.parameters[i];
    if (given[i]) {
      if (!push(stack, given[i], parameter)) return false;
    } else {
      if (!parameter.default_value) return false;
      stack.push_back(*parameter.default_value);
    }
  }
  return true;
}

// Returns what torch.ops returns: None, a tensor, or a tuple of tensors.
PyObject* wrap(torch::jit::Stack& stack) {
  if (stack.empty()) Py_RETURN_NONE;
  if (stack.size() == 1) return THPVariable_Wrap(std::move(stack[0]).toTensor());
  PyObject* result = PyTuple_New(static_cast<Py_ssize_t>(stack.size()));
  for (size_t i = 0; result && i < stack.size(); ++i) {
    PyObject* item = THPVariable_Wrap(std::move(stack[i]).toTensor());
    if (!item) Py_CLEAR(result);
    if (item) PyTuple_SET_ITEM(result, static_cast<Py_ssize_t>(i), item);
  }
  return result;
}

const char kCapsule[] = "baraquant.overloads";

PyObject* call(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
  HANDLE_TH_ERRORS
  const auto& overloads = *static_cast<Overloads*>(PyCapsule_GetPointer(self, kCapsule));
  torch::jit::Stack stack;
  stack.reserve(kMaxArguments);
  if (!at::impl::torch_function_mode_enabled()) {
    for (const Overload& overload : overloads) {
      stack.clear();
      if (!match(overload, args, static_cast<size_t>(count), keywords, stack)) continue;
      {
        const pybind11::gil_scoped_release no_gil;
        overload.op.callBoxed(stack);
      }
      return wrap(stack);
    }
  }
  Py_RETURN_NOTIMPLEMENTED;
  END_HANDLE_TH_ERRORS
}

PyMethodDef kCall = {"eager_call", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&call)),
                     METH_FASTCALL | METH_KEYWORDS, nullptr};

void free_overloads(PyObject* capsule) {
  delete static_cast<Overloads*>(PyCapsule_GetPointer(capsule, kCapsule));
}

}  // namespace

PyObject* make_eager_call(const std::string& qualified_name,
                          const std::vector<std::string>& overloads) {
  HANDLE_TH_ERRORS
  auto read = std::make_unique<Overloads>();
  for (const std::string& overload : overloads) {
    const auto op =
        c10::Dispatcher::singleton().findSchemaOrThrow(qualified_name.c_str(), overload.c_str());
    auto schema = read_schema(op);
    TORCH_CHECK_NOT_IMPLEMENTED(schema, qualified_name,
                                ": expected a schema of tensors, numbers, "
                                "bools, strings, dtypes and lists of ints, but got ",
                                op.schema());
    read->push_back(std::move(*schema));
  }
  PyObject* capsule = PyCapsule_New(read.get(), kCapsule, &free_overloads);
  if (!capsule) return nullptr;
  read.release();
  PyObject* result = PyCFunction_NewEx(&kCall, capsule, nullptr);
  Py_DECREF(capsule);
  return result;
  END_HANDLE_TH_ERRORS
}

}  // namespace baraquant
