// SPDX-License-Identifier: BSD-3-Clause
// Calls ops from eager Python without the cost of torch.ops; see eager.cpp.
#pragma once

#include <Python.h>

#include <string>
#include <vector>

namespace baraquant {

// Returns a callable for some overloads of an op ("" is the default one), which are tried in that
// order. If there is no such op, it returns null and sets a Python error.
PyObject* make_eager_call(const std::string& qualified_name,
                          const std::vector<std::string>& overloads);

}  // namespace baraquant
