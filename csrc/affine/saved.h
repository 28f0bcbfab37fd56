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

// Calls f(number) for what backward needs besides tensors. It is one list of integers in one entry of
// saved_data, which a memory order ends: each entry takes time, which shows in a small call.
template <typename Args, typename Dtype, typename Flag, typename F>
void for_each_number(Args& q, Dtype& dtype, Flag& through_quantize, const F& f) {
  f(q.scope.granularity), f(q.scope.axis), f(q.scope.group_size);
  f(q.quant_min), f(q.quant_max), f(q.zero_point_number), f(q.scale_number);
  f(dtype), f(through_quantize);
}

inline void save_numbers(AutogradContext* ctx, const QuantArgs& q, at::ScalarType dtype,
                         bool through_quantize, at::IntArrayRef order = {}) {
  std::vector<c10::SymInt> list;
  list.reserve(9 + order.size());
  for_each_number(q, dtype, through_quantize, [&]<typename T>(const T& number) {
    if constexpr (std::is_same_v<T, double>) {
      list.emplace_back(bit_cast<int64_t>(number));
    } else if constexpr (std::is_same_v<T, c10::SymInt>) {
      list.push_back(number);
    } else {
      list.emplace_back(static_cast<int64_t>(number));
    }
  });
  list.insert(list.end(), order.begin(), order.end());
  ctx->saved_data.emplace("numbers", std::move(list));
}

// The tensors that backward needs; undefined where it does not.
struct SavedTensors {
  at::Tensor input = {}, scale = {}, zero_point = {}, mask = {};
  auto fields() { return std::tie(input, scale, zero_point, mask); }
};

// Both, as forward's arguments again.
struct Saved : SavedTensors {
  OptionalTensor optional_scale, optional_zero_point;
  QuantArgs q{.scale = optional_scale, .zero_point = optional_zero_point};
  at::ScalarType dtype = at::kFloat;
  bool through_quantize = false;
  std::vector<int64_t> order;

  explicit Saved(AutogradContext* ctx) : SavedTensors(saved_tensors<SavedTensors>(ctx)) {
    if (scale.defined()) optional_scale = scale;
    if (zero_point.defined()) optional_zero_point = zero_point;
    const auto list = ctx->saved_data.at("numbers").toSymIntVector();
    auto next = list.begin();
    for_each_number(q, dtype, through_quantize, [&]<typename T>(T& number) {
      const c10::SymInt& value = *next++;
      if constexpr (std::is_same_v<T, double>) {
        number = bit_cast<double>(value.expect_int());
      } else if constexpr (std::is_same_v<T, c10::SymInt>) {
        number = value;
      } else {
        number = static_cast<T>(value.expect_int());
      }
    });
    for (; next != list.end(); ++next) order.push_back(next->expect_int());
  }
  Saved(const Saved&) = delete;  // q refers to the tensors
};

}  // namespace baraquant::affine
