// SPDX-License-Identifier: BSD-3-Clause
#include "frame/plan.h"

namespace baraquant {
namespace {

thread_local std::vector<KernelPlan>* current = nullptr;

}  // namespace

std::vector<KernelPlan>* plans_of_thread() { return current; }

Planning::Planning() : outer_(current) { current = &plans_; }

Planning::~Planning() { current = outer_; }

}  // namespace baraquant
