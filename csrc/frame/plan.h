// SPDX-License-Identifier: BSD-3-Clause
// What baraquant.plan() shows: the kernels that a call would launch, in order. The plan comes from
// the code that selects a kernel: after selecting, it calls only_planned(), and returns without a
// launch if that is true. So there is no second table that could disagree. Without torch.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "machine/export.h"

namespace baraquant {

struct KernelPlan {
  std::string name = {}, backend = {}, architecture = {}, tile = {};
  std::string compute_dtype = {}, accumulator_dtype = {};
  int64_t workspace_bytes = 0;  // scratch memory, allocated for the call and freed after it
  bool deterministic = true;    // the same bits in every execution on this device
  bool bit_stable = true;       // the same bits on every device
};

template <typename C>
const char* compute_name() {
  if (std::is_integral_v<C>) return "int32";
  return sizeof(C) == 8 ? "float64" : "float32";
}

// Where this thread collects its plans; null means that calls are executed, not planned.
BARAQUANT_API std::vector<KernelPlan>* plans_of_thread();

// While such an object lives, this thread's calls are planned, not executed.
class BARAQUANT_API Planning {
 public:
  Planning();
  ~Planning();
  Planning(const Planning&) = delete;
  Planning& operator=(const Planning&) = delete;

  const std::vector<KernelPlan>& plans() const { return plans_; }

 private:
  std::vector<KernelPlan> plans_;
  std::vector<KernelPlan>* outer_;
};

inline bool is_planning() { return plans_of_thread() != nullptr; }

// While baraquant.plan() runs, adds make_plan() to the plans and returns true; then the caller must
// return without launching.
template <typename F>
bool only_planned(const F& make_plan) {
  std::vector<KernelPlan>* plans = plans_of_thread();
  if (plans == nullptr) return false;
  plans->push_back(make_plan());
  return true;
}

}  // namespace baraquant
