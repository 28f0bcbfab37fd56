// SPDX-License-Identifier: BSD-3-Clause
// Memory of a task of the product on the CPU, without torch.
#pragma once

#include <cstdint>
#include <memory>
#include <new>

namespace baraquant::int8_mm {

// Uninitialised memory, aligned to a cache line.
template <typename T>
class Scratch {
 public:
  explicit Scratch(int64_t count)
      : data_(static_cast<T*>(::operator new(sizeof(T) * static_cast<size_t>(count), kAlignment))) {
  }
  T* data() const { return data_.get(); }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Delete {
    void operator()(T* p) const { ::operator delete(p, kAlignment); }
  };
  std::unique_ptr<T, Delete> data_;
};

}  // namespace baraquant::int8_mm
