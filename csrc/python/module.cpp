// SPDX-License-Identifier: BSD-3-Clause
// baraquant._C: functions that are not ops, and a fast way to call ops (eager.cpp).
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "frame/build_info.h"
#include "frame/plan.h"
#include "machine/cpu_isa.h"
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
  result["with_cutlass"] = info.with_cutlass;
  return result;
}

// Returns the kernels that call() would launch, in order.
std::vector<py::dict> plan(const py::function& call) {
  const baraquant::Planning planning;
  call();
  std::vector<py::dict> result;
  for (const baraquant::KernelPlan& kernel : planning.plans()) {
    py::dict entry;
    entry["name"] = kernel.name;
    entry["backend"] = kernel.backend;
    entry["architecture"] = kernel.architecture;
    entry["tile"] = kernel.tile;
    entry["workspace_bytes"] = kernel.workspace_bytes;
    entry["compute_dtype"] = kernel.compute_dtype;
    entry["accumulator_dtype"] = kernel.accumulator_dtype;
    entry["deterministic"] = kernel.deterministic;
    entry["bit_stable"] = kernel.bit_stable;
    result.push_back(std::move(entry));
  }
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
      "The instruction set that the CPU kernels use: default, neon_dotprod, avx2, avx_vnni, "
      "avx512, avx512_vnni or amx.");
  m.def("plan", &plan, py::arg("call"),
        "Runs call() without launching anything; returns the kernels that it would launch.");
  m.def("eager_call", &eager_call, py::arg("qualified_name"), py::arg("overloads"),
        "A fast callable for an op; it returns NotImplemented for arguments that are not plain.");
}
