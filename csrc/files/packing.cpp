// SPDX-License-Identifier: BSD-3-Clause
#include "files/packing.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "files/text.h"

namespace baraquant::files {
namespace {

constexpr int64_t kGrain = 1 << 14;  // groups of eight integers, which end on a byte

// Call `one(group, count)` for each group of eight integers; the last one may have fewer.
template <typename F>
void for_groups(int64_t numel, const F& one) {
  at::parallel_for(0, (numel + 7) / 8, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t group = begin; group < end; ++group) {
      one(group, std::min<int64_t>(8, numel - 8 * group));
    }
  });
}

// The number of bytes that integers of 2 to 8 bits take.
int64_t packed_size(int64_t numel, int64_t bits) {
  TORCH_INTERNAL_ASSERT(2 <= bits && bits <= 8);
  return (numel * bits + 7) / 8;
}

}  // namespace

at::Tensor pack(const at::Tensor& integers, int64_t bits) {
  const at::Tensor flat = integers.detach().cpu().contiguous();
  const int64_t numel = flat.numel();
  at::Tensor packed = at::empty({packed_size(numel, bits)}, at::kByte);
  const int8_t* from = flat.const_data_ptr<int8_t>();
  uint8_t* to = packed.mutable_data_ptr<uint8_t>();
  const uint64_t mask = (uint64_t{1} << bits) - 1;
  for_groups(numel, [&](int64_t group, int64_t count) {
    uint64_t stream = 0;
    for (int64_t i = 0; i < count; ++i) {
      stream |= (static_cast<uint64_t>(from[8 * group + i]) & mask) << (i * bits);
    }
    for (int64_t byte = 0; byte < (count * bits + 7) / 8; ++byte) {
      to[group * bits + byte] = static_cast<uint8_t>(stream >> (8 * byte));
    }
  });
  return packed;
}

at::Tensor unpack(const at::Tensor& given, int64_t bits, c10::IntArrayRef shape) {
  at::Tensor integers = at::empty(shape, at::kChar);
  const at::Tensor packed = given.contiguous();
  TORCH_INTERNAL_ASSERT(packed.is_cpu() && packed.numel() == packed_size(integers.numel(), bits));
  const uint8_t* from = packed.const_data_ptr<uint8_t>();
  int8_t* to = integers.mutable_data_ptr<int8_t>();
  const int unused = static_cast<int>(8 - bits);
  for_groups(integers.numel(), [&](int64_t group, int64_t count) {
    uint64_t stream = 0;
    for (int64_t byte = 0; byte < (count * bits + 7) / 8; ++byte) {
      stream |= uint64_t{from[group * bits + byte]} << (8 * byte);
    }
    for (int64_t i = 0; i < count; ++i) {
      // The upper bits of a byte, shifted down, extend the sign.
      const auto upper = static_cast<uint8_t>(stream >> (i * bits) << unused);
      to[8 * group + i] = static_cast<int8_t>(static_cast<int8_t>(upper) >> unused);
    }
  });
  return integers;
}

void check_spare_bits(const at::Tensor& packed, int64_t bits, int64_t numel) {
  const int64_t used = numel % 8 * bits % 8;
  if (used == 0) return;
  const uint8_t last = packed.const_data_ptr<uint8_t>()[packed.numel() - 1];
  if (last >> used == 0) return;
  fail("expected the ", 8 - used, " bits behind the last integer to be 0, but its last byte is ",
       int{last});
}

}  // namespace baraquant::files
