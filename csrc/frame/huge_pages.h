// SPDX-License-Identifier: BSD-3-Clause
// Memory of large outputs on the CPU, under Linux. glibc maps a large block anew for each tensor, and
// the system hands it out page by page as it is written: with pages of 4 KiB that takes several times
// as long as an op itself.
#pragma once

#include <ATen/core/Tensor.h>

namespace baraquant {

// Returns the tensor, whose memory nobody has written yet. Where it is large and the system allows it
// (transparent_hugepage is madvise or always), it is handed out in pages of 2 MiB. The environment
// variable BARAQUANT_HUGE_PAGES=0 leaves memory as it comes.
at::Tensor with_huge_pages(at::Tensor tensor);

}  // namespace baraquant
