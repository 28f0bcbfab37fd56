// SPDX-License-Identifier: BSD-3-Clause
// What a convolution gives to the blocked product (int8_mm/cpu/blocked.h), without torch: the rows of
// the input, which are patches of an image, and where the outputs go.
#pragma once

#include <vector>

#include "int8_conv/cpu/image.h"
#include "int8_mm/cpu/blocked.h"

namespace baraquant::int8_conv {

// Row m is the values under the kernel at output pixel m: runs of an image (image.h).
class PatchRows {
 public:
  PatchRows(const Shape& shape, const ImageLayout& layout, const uint8_t* image, bool is_unsigned)
      : layout_(layout), image_(image), is_unsigned_(is_unsigned) {
    const Space& kernel = shape.kernel;
    const bool in_one_run = shape.dilation[2] == 1 || kernel[2] == 1;
    run_ = (in_one_run ? kernel[2] : 1) * layout.channels();
    for (int64_t d = 0; d < kernel[0]; ++d) {
      for (int64_t h = 0; h < kernel[1]; ++h) {
        for (int64_t w = 0; w < (in_one_run ? 1 : kernel[2]); ++w) {
          starts_.push_back(layout.step(d, h, w));
        }
      }
    }
  }

  void pack(const int8_mm::CpuKernel& kernel, int64_t m, int64_t padded, uint8_t* packed) const {
    const uint8_t* const from = image_ + layout_.origin(m);
    const int64_t bytes = 4 / kernel.word, last = static_cast<int64_t>(starts_.size()) - 1;
    for (int64_t i = 0; i <= last; ++i) {
      kernel.pack_input(from + starts_[i], is_unsigned_, run_, i == last ? padded - i * run_ : run_,
                        packed + i * run_ * bytes);
    }
  }

 private:
  const ImageLayout& layout_;
  const uint8_t* image_;
  bool is_unsigned_;
  int64_t run_;
  std::vector<int64_t> starts_;
};

// Writes outputs [images, pixels, channels], or [images, channels, pixels] unless channels_last. It is
// called with the rows and columns of one group, whose first channel is at `output`.
template <typename T>
class FinishConv {
 public:
  FinishConv(const int8_mm::Finish<T>& finish, const Shape& shape, bool channels_last, T* output)
      : finish_(finish),
        channels_(shape.all_outputs()),
        pixels_(shape.pixels()),
        channels_last_(channels_last),
        output_(output) {}

  void operator()(CpuIsa isa, int64_t m, int64_t rows, int64_t n, int64_t columns,
                  const int8_mm::Sums& sums, const int32_t* weight_sums) const {
    if (channels_last_) {
      return finish_.write(isa, m, rows, n, columns, sums, weight_sums, output_ + m * channels_ + n,
                           channels_);
    }
    using Lane = std::conditional_t<sizeof(T) == 8, uint64_t,
                                    std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>>;
    alignas(64) T block[kRows * int8_mm::kColumnBlock];
    for (int64_t i = 0, count = 0; i < rows; i += count) {
      const int64_t pixel = (m + i) % pixels_;
      count = std::min({kRows, rows - i, pixels_ - pixel});
      finish_.write(isa, m + i, count, n, columns, {sums.data + i * sums.stride, sums.stride},
                    weight_sums, block, columns);
      T* const to = output_ + ((m + i) / pixels_ * channels_ + n) * pixels_ + pixel;
      transpose(reinterpret_cast<const Lane*>(block), columns, count, columns,
                reinterpret_cast<Lane*>(to), pixels_);
    }
  }

 private:
  static constexpr int64_t kRows = 16;

  const int8_mm::Finish<T>& finish_;
  int64_t channels_, pixels_;
  bool channels_last_;
  T* output_;
};

}  // namespace baraquant::int8_conv
