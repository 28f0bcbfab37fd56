// SPDX-License-Identifier: BSD-3-Clause
// Calls ops from eager Python without the cost of torch.ops, which matches arguments to schemas
// through generic conversions (about 4 us a call). Here a schema is parsed once. Plain arguments
// (exactly a Tensor or Parameter, int, float, bool, str, dtype, None, or a list or tuple of ints or
// tensors, as the schema requires) go to the dispatcher. For anything else, such as a Tensor subclass
// or a SymInt, the callable returns NotImplemented, and the caller uses torch.ops.
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
  std::optional<c10::IValue> default_value;
  c10::TypeKind kind = {};
  bool optional = false, of_tensors = false;
};

struct Overload {
  c10::OperatorHandle op;
  std::vector<Parameter> parameters;
  size_t positional;  // the parameters after this many are keyword-only
};

// The overloads of one op, tried in order.
using Overloads = std::vector<Overload>;

bool is_list_of_tensors(const c10::Type& type) {
  return type.isSubtypeOf(*c10::ListType::ofTensors());
}

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
      parameter.of_tensors = is_list_of_tensors(*type);
      return parameter.of_tensors || type->isSubtypeOf(*c10::ListType::ofInts());
    default:
      return false;
  }
}

std::optional<Overload> read_schema(const c10::OperatorHandle& op) {
  Overload overload{op, {}, 0};
  for (const c10::Argument& argument : op.schema().arguments()) {
    Parameter parameter{PyUnicode_InternFromString(argument.name().c_str()),
                        argument.default_value()};
    if (!read_type(argument.real_type(), parameter)) return std::nullopt;
    if (!argument.kwarg_only()) ++overload.positional;
    overload.parameters.push_back(std::move(parameter));
  }
  const auto& results = op.schema().returns();
  for (const c10::Argument& result : results) {
    const bool is_list = results.size() == 1 && is_list_of_tensors(*result.type());
    if (!is_list && result.type()->kind() != c10::TypeKind::TensorType) return std::nullopt;
  }
  if (overload.parameters.size() > kMaxArguments) return std::nullopt;
  return overload;
}

// Each puts a plain value at the end. Returns false if it is not plain.
template <typename Values>
bool append_int(Values& values, PyObject* item) {
  if (!PyLong_CheckExact(item)) return false;
  int overflow = 0;
  values.emplace_back(static_cast<int64_t>(PyLong_AsLongLongAndOverflow(item, &overflow)));
  return overflow == 0;
}
template <typename Values>
bool append_tensor(Values& values, PyObject* item) {
  if (!THPVariable_CheckExact(item)) return false;
  values.emplace_back(THPVariable_Unpack(item));
  return true;
}

// Pushes a list or tuple. An int too, as the list that a schema's int[1] stands for.
template <typename T, bool append(c10::List<T>&, PyObject*)>
bool push_list(torch::jit::Stack& stack, PyObject* object) {
  c10::List<T> values;
  if (PyTuple_CheckExact(object) || PyList_CheckExact(object)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i) {
      if (!append(values, PySequence_Fast_GET_ITEM(object, i))) return false;
    }
  } else if (!std::is_same_v<T, int64_t> || !append(values, object)) {
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
      return append_tensor(stack, object);
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      return append_int(stack, object);
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
      return parameter.of_tensors ? push_list<at::Tensor, append_tensor>(stack, object)
                                  : push_list<int64_t, append_int>(stack, object);
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

// Returns what torch.ops returns: None, a tensor, a list of tensors, or a tuple of them.
PyObject* wrap(torch::jit::Stack& stack) {
  if (stack.empty()) Py_RETURN_NONE;
  if (stack.size() == 1 && stack[0].isTensor()) {
    return THPVariable_Wrap(std::move(stack[0]).toTensor());
  }
  const bool is_list = stack[0].isList();
  const at::ArrayRef<c10::IValue> items =
      is_list ? stack[0].toListRef() : at::ArrayRef<c10::IValue>(stack);
  const auto size = static_cast<Py_ssize_t>(items.size());
  const auto set = is_list ? &PyList_SetItem : &PyTuple_SetItem;
  PyObject* result = is_list ? PyList_New(size) : PyTuple_New(size);
  for (Py_ssize_t i = 0; result && i < size; ++i) {
    PyObject* item = THPVariable_Wrap(items[i].toTensor());
    if (!item) Py_CLEAR(result);
    if (item) set(result, i, item);
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
