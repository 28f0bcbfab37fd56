// SPDX-License-Identifier: BSD-3-Clause
// What the forward passes of the affine family keep for their backward passes.
#pragma once

#include <optional>
#include <tuple>
#include <vector>

#include "affine/core_ops.h"
#include "frame/saved_tensors.h"
#include "machine/float_types.h"

namespace baraquant::affine {

// What backward needs besides tensors. It is one list of integers in one entry of saved_data: each
// entry takes time, which shows in a small call.
struct SavedNumbers {
  Scope scope;
  int64_t quant_min = 0, quant_max = 0, zero_point_number = 0;
  double scale_number = 1;
  at::ScalarType dtype = at::kFloat;
  bool through_quantize = false;
  std::vector<int64_t> order = {};

  static SavedNumbers of(const QuantArgs& q, at::ScalarType dtype, bool through_quantize,
                         std::vector<int64_t> order = {}) {
    return {q.scope,        q.quant_min, q.quant_max,      q.zero_point_number,
            q.scale_number, dtype,       through_quantize, std::move(order)};
  }

  // Calls f(field) in the order of the list, which `order` ends.
  template <typename Numbers, typename F>
  static void for_each_field(Numbers& n, const F& f) {
    f(n.scope.granularity), f(n.scope.axis), f(n.scope.group_size);
    f(n.quant_min), f(n.quant_max), f(n.zero_point_number), f(n.scale_number);
    f(n.dtype), f(n.through_quantize);
  }

  void save(AutogradContext* ctx) const {
    std::vector<c10::SymInt> list;
    list.reserve(9 + order.size());
    for_each_field(*this, [&]<typename T>(const T& field) {
      if constexpr (std::is_same_v<T, double>) {
        list.emplace_back(bit_cast<int64_t>(field));
      } else if constexpr (std::is_same_v<T, c10::SymInt>) {
        list.push_back(field);
      } else {
        list.emplace_back(static_cast<int64_t>(field));
      }
    });
    list.insert(list.end(), order.begin(), order.end());
    ctx->saved_data.emplace("numbers", std::move(list));
  }

  static SavedNumbers load(const AutogradContext* ctx) {
    const auto list = ctx->saved_data.at("numbers").toSymIntVector();
    auto next = list.begin();
    SavedNumbers n;
    for_each_field(n, [&]<typename T>(T& field) {
      const c10::SymInt& value = *next++;
      if constexpr (std::is_same_v<T, double>) {
        field = bit_cast<double>(value.expect_int());
      } else if constexpr (std::is_same_v<T, c10::SymInt>) {
        field = value;
      } else {
        field = static_cast<T>(value.expect_int());
      }
    });
    for (; next != list.end(); ++next) n.order.push_back(next->expect_int());
    return n;
  }
};

// The tensors that backward needs; undefined where it does not.
struct SavedTensors {
  at::Tensor input = {}, scale = {}, zero_point = {}, mask = {};
  auto fields() { return std::tie(input, scale, zero_point, mask); }
};

// Both, as forward's arguments again.
struct Saved : SavedTensors, SavedNumbers {
  explicit Saved(AutogradContext* ctx)
      : SavedTensors(saved_tensors<SavedTensors>(ctx)), SavedNumbers(SavedNumbers::load(ctx)) {
    if (scale.defined()) optional_scale = scale;
    if (zero_point.defined()) optional_zero_point = zero_point;
  }
  QuantArgs args() const {
    return {.scale = optional_scale,
            .zero_point = optional_zero_point,
            .scale_number = scale_number,
            .zero_point_number = zero_point_number,
            .scope = scope,
            .quant_min = quant_min,
            .quant_max = quant_max};
  }

 private:
  OptionalTensor optional_scale, optional_zero_point;
};

}  // namespace baraquant::affine
