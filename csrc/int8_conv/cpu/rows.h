// SPDX-License-Identifier: BSD-3-Clause
// What a convolution gives to the blocked product (int8_mm/cpu/blocked.h), without torch: the rows of
// the input, which are patches of an image, and where the outputs go.
#pragma once

#include <vector>

#include "int8_conv/cpu/image.h"
#include "int8_mm/cpu/blocked.h"

namespace baraquant::int8_conv {

// Whether it is faster to bring the patches into the order of a weight whose channels lie first than
// to bring that into theirs: there are fewer of them than rows of the weight.
inline bool reorders_patches(const Shape& shape) {
  return shape.rows() < shape.outputs && shape.inputs >= TwoSquares::kBoth &&
         volume(shape.kernel) <= TwoSquares::kLanes && !shape.is_depthwise();
}

// Row m is the values under the kernel at output pixel m: runs of an image (image.h), in the order
// of the weight's values: with the channels last or, if channels_first, first.
class PatchRows {
 public:
  PatchRows(const Shape& shape, const ImageLayout& layout, const uint8_t* image, bool is_unsigned,
            bool channels_first)
      : layout_(layout), image_(image), is_unsigned_(is_unsigned), channels_first_(channels_first) {
    const Space& kernel = shape.kernel;
    const bool in_one_run = !channels_first && (shape.dilation[2] == 1 || kernel[2] == 1);
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
    if (channels_first_) return pack_channels_first(kernel, m, padded, packed);
    const uint8_t* const from = image_ + layout_.origin(m);
    const int64_t bytes = 4 / kernel.word, last = static_cast<int64_t>(starts_.size()) - 1;
    for (int64_t i = 0; i <= last; ++i) {
      kernel.pack_input(from + starts_[i], is_unsigned_, run_, i == last ? padded - i * run_ : run_,
                        packed + i * run_ * bytes);
    }
  }

 private:
  void pack_channels_first(const int8_mm::CpuKernel& kernel, int64_t m, int64_t padded,
                           uint8_t* packed) const {
    const int64_t count = static_cast<int64_t>(starts_.size()), channels = layout_.channels();
    const int8_mm::Scratch<uint8_t> row(count * channels + TwoSquares::kLanes);
    run_on_isa(cpu_isa(), [&]() __attribute__((always_inline)) {
      transpose_scattered(image_ + layout_.origin(m), starts_.data(), count, channels, row.data());
    });
    kernel.pack_input(row.data(), is_unsigned_, count * channels, padded, packed);
  }

  const ImageLayout& layout_;
  const uint8_t* image_;
  bool is_unsigned_, channels_first_;
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
