// SPDX-License-Identifier: BSD-3-Clause
#include "frame/huge_pages.h"

#ifdef __linux__
#include <sys/mman.h>
#include <unistd.h>
#endif

#include <cstdint>
#include <cstdlib>
#include <string_view>

namespace baraquant {
namespace {

#ifdef MADV_HUGEPAGE
constexpr size_t kMinBytes = size_t(32) << 20;  // smaller blocks glibc keeps and gives again

bool are_wanted() {
  const char* const wish = std::getenv("BARAQUANT_HUGE_PAGES");
  return wish == nullptr || std::string_view(wish) != "0";
}

void ask_for_huge_pages(const void* data, size_t bytes) {
  static const bool wanted = are_wanted();
  if (!wanted || bytes < kMinBytes) return;
  static const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<uintptr_t>(data);
  const uintptr_t begin = (address + page - 1) / page * page, end = (address + bytes) / page * page;
  // A system that has none refuses, and nothing is lost.
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}
#else
void ask_for_huge_pages(const void*, size_t) {}
#endif

}  // namespace

at::Tensor with_huge_pages(at::Tensor tensor) {
  if (tensor.is_cpu() && tensor.has_storage()) {
    const c10::Storage& storage = tensor.storage();
    if (storage.data() != nullptr) ask_for_huge_pages(storage.data(), storage.nbytes());
  }
  return tensor;
}

}  // namespace baraquant
