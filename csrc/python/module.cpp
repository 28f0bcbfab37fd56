// SPDX-License-Identifier: BSD-3-Clause
// baraquant._C: what is not an op. The ops reach Python through torch.ops, not through here.
#include <pybind11/pybind11.h>

#include "build_info.h"
#include "cpu_isa.h"

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

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.doc() = "Build information of libbaraquant and the choices it made on this machine.";
  m.def("build_info", &build_info, "With what libbaraquant.so was built.");
  m.def(
      "cpu_isa", [] { return baraquant::cpu_isa_name(baraquant::cpu_isa()); },
      "The instruction set that the CPU kernels use: default, avx2 or avx512.");
}
