// SPDX-License-Identifier: BSD-3-Clause
// baraquant._C: what is not an op, and a fast way to call ops (eager.cpp).
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "build_info.h"
#include "cpu_isa.h"
#include "python/eager.h"

namespace py = pybind11;

namespace {

py::dict build_info() {
  const baraquant::BuildInfo& info = baraquant::build_info();
  py::dict result;
  result["version"] = info.version;
  result["torch_version"] = info.torch_version;
  result["compiler"] = info.compiler;
  result["nvcc_version"] = info.nvcc_version;
  result["cuda_architectures"] = info.cuda_architectures;
  result["with_cuda"] = info.with_cuda;
  return result;
}

py::object eager_call(const std::string& qualified_name,
                      const std::vector<std::string>& overloads) {
  PyObject* result = baraquant::make_eager_call(qualified_name, overloads);
  if (!result) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(result);
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.doc() =
      "Build information of libbaraquant, the choices it made here, and fast calls of its ops.";
  m.def("build_info", &build_info, "With what libbaraquant.so was built.");
  m.def(
      "cpu_isa", [] { return baraquant::cpu_isa_name(baraquant::cpu_isa()); },
      "The instruction set that the CPU kernels use: default, avx2 or avx512.");
  m.def("eager_call", &eager_call, py::arg("qualified_name"), py::arg("overloads"),
        "A fast callable for an op; it returns NotImplemented for arguments that are not plain.");
}
