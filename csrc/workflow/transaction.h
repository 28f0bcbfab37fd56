// SPDX-License-Identifier: BSD-3-Clause
// One transaction for every call that changes a model: it changes as a whole, or not at all.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace baraquant::workflow {

// The most parameters that are kept until the end, so that an error puts them back: 1 GiB of float32.
constexpr int64_t kKept = int64_t{1} << 28;

// How to undo what was done to a model so far. Whatever writes to a model first notes that here; what
// is left of it when the transaction ends, as by an exception, is undone, the last first.
class Transaction {
 public:
  Transaction();  // notes the random numbers of the CPU
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;
  ~Transaction();

  // Note what undoes the step that comes next. It is tried a second time if it throws.
  void undo_by(std::function<void()> step);
  // Note the values of a tensor that is written to in place.
  void keep_values(const at::Tensor& tensor);
  // Write to a tensor of the model, which members of its modules may hold: it stays the same object.
  void write(const at::Tensor& tensor, const at::Tensor& values);
  // Undo everything now; throws what a step throws twice, after the others.
  void undo();
  // Let everything stay, also what is done from here on: what is replaced is freed at once.
  void finish() noexcept;

 private:
  const c10::NoGradGuard no_grad_;  // a graph of PyTorch ends the program where memory fails
  std::vector<std::function<void()>> undos_;
  bool is_finished_ = false;
};

}  // namespace baraquant::workflow
