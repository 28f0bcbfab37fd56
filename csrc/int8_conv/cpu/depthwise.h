// SPDX-License-Identifier: BSD-3-Clause
// Depthwise convolutions on the CPU, without torch: each output channel is a sum over the kernel's
// positions, so vectors lie along the channels. Products of bytes are exact in int16:
// 255 * 128 < 2^15.
#pragma once

#include <vector>

#include "int8_conv/cpu/image.h"
#include "int8_mm/cpu/blocked.h"

namespace baraquant::int8_conv {

// The weight [positions, channels] of the image's channels, and where each position lies.
struct DepthwiseWeight {
  std::vector<int16_t> values;
  std::vector<int64_t> steps;

  DepthwiseWeight(const Shape& shape, const ImageLayout& layout, const int8_t* weight)
      : values(volume(shape.kernel) * layout.channels()) {
    const Space& kernel = shape.kernel;
    for (int64_t d = 0; d < kernel[0]; ++d) {
      for (int64_t h = 0; h < kernel[1]; ++h) {
        for (int64_t w = 0; w < kernel[2]; ++w) {
          int16_t* const to = values.data() + steps.size() * layout.channels();
          for (int64_t c = 0; c < shape.all_outputs(); ++c) {
            to[c] = weight[c * volume(kernel) + steps.size()];
          }
          steps.push_back(layout.step(d, h, w));
        }
      }
    }
  }
};

// sums[c] for kChannelUnit channels, from `from` and `weight` on.
template <typename Byte>
BARAQUANT_HD void add_up(const Byte* from, const DepthwiseWeight& w, int64_t channels,
                         int64_t channel, int32_t* sums) {
  typedef Byte Bytes __attribute__((vector_size(kChannelUnit)));
  typedef int16_t Products __attribute__((vector_size(kChannelUnit * 2)));
  typedef int32_t Sums __attribute__((vector_size(kChannelUnit * 4)));
  Sums acc{};
  const int16_t* weight = w.values.data() + channel;
  for (const int64_t step : w.steps) {
    Bytes values;
    Products factors;
    std::memcpy(&values, from + step, sizeof(values));
    std::memcpy(&factors, weight, sizeof(factors));
    acc += __builtin_convertvector(__builtin_convertvector(values, Products) * factors, Sums);
    weight += channels;
  }
  std::memcpy(sums, &acc, sizeof(acc));
}

// Gives the sums of all rows and channels to finish(), as the blocked product does.
template <typename Byte, typename Write, typename Parallel>
void depthwise(const Shape& shape, const ImageLayout& layout, const Byte* image,
               const DepthwiseWeight& weight, const Write& finish, CpuIsa isa,
               const Parallel& parallel) {
  constexpr int64_t kRows = 16, kColumns = int8_mm::kColumnBlock;
  constexpr int32_t kNoOffset[kColumns] = {};
  const int64_t rows = shape.rows(), outputs = shape.all_outputs(), channels = layout.channels();
  const int64_t cost = kRows * channels * (volume(shape.kernel) + 4);
  parallel((rows + kRows - 1) / kRows, int8_mm::kUnit / (4 * cost) + 1,
           [&](int64_t begin, int64_t end) {
             alignas(64) int32_t sums[kRows * kColumns];
             for (int64_t m = begin * kRows; m < std::min(end * kRows, rows); m += kRows) {
               const int64_t count = std::min(kRows, rows - m);
               for (int64_t n = 0; n < outputs; n += kColumns) {
                 const int64_t columns = std::min(kColumns, outputs - n);
                 run_on_isa(isa, [&]() __attribute__((always_inline)) {
                   for (int64_t i = 0; i < count; ++i) {
                     const Byte* const from = image + layout.origin(m + i);
                     for (int64_t c = 0; c < columns; c += kChannelUnit) {
                       add_up(from + n + c, weight, channels, n + c, sums + i * kColumns + c);
                     }
                   }
                 });
                 finish(isa, m, count, n, columns, {sums, kColumns}, kNoOffset);
               }
             }
           });
}

}  // namespace baraquant::int8_conv
