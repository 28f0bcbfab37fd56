// SPDX-License-Identifier: BSD-3-Clause
#include "workflow/transaction.h"

#include <ATen/Context.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/signbit.h>
#include <c10/core/InferenceMode.h>

#include <exception>
#include <mutex>
#include <utility>

namespace baraquant::workflow {

namespace {

void copy_values(const at::Tensor& tensor, const at::Tensor& values) {
  const c10::InferenceMode mode(tensor.is_inference());
  const c10::NoGradGuard no_grad;  // where it is off, it lets gradients be
  tensor.copy_(values);
}

// Write a copy back, unless the tensor has its bits: a graph may have kept the tensor.
void restore(const at::Tensor& tensor, const at::Tensor& saved) {
  if (tensor.sizes() != saved.sizes()) {
    tensor.set_data(saved);
  } else if (tensor.is_complex() || !at::equal(tensor, saved) ||
             !at::equal(at::signbit(tensor), at::signbit(saved))) {
    copy_values(tensor, saved);
  }
}

}  // namespace

Transaction::Transaction() {
  auto generator = at::globalContext().defaultGenerator(at::kCPU);
  const std::scoped_lock lock(generator.mutex());
  undo_by([generator, random = generator.get_state()]() mutable {
    const std::scoped_lock lock(generator.mutex());
    generator.set_state(random);
  });
}

Transaction::~Transaction() {
  try {
    undo();
  } catch (...) {  // NOLINT: the exception that ends the transaction goes on
  }
}

void Transaction::undo_by(std::function<void()> step) {
  if (!is_finished_) undos_.push_back(std::move(step));
}

void Transaction::keep_values(const at::Tensor& tensor) {
  if (is_finished_ || !tensor.defined() || tensor.is_meta()) return;
  undo_by([tensor, saved = tensor.detach().clone()] { restore(tensor, saved); });
}

void Transaction::write(const at::Tensor& tensor, const at::Tensor& values) {
  keep_values(tensor);
  copy_values(tensor, values);
}

void Transaction::undo() {
  std::exception_ptr failure;
  while (!undos_.empty()) {
    const auto step = std::move(undos_.back());
    undos_.pop_back();
    try {
      step();
    } catch (...) {
      try {
        step();
      } catch (...) {
        failure = std::current_exception();
      }
    }
  }
  if (failure) std::rethrow_exception(failure);
}

void Transaction::finish() noexcept {
  is_finished_ = true;
  undos_.clear();
}

}  // namespace baraquant::workflow
