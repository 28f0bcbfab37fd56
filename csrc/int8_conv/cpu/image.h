// SPDX-License-Identifier: BSD-3-Clause
// The input of a convolution on the CPU as its product reads it, without torch: padded with the zero
// point, and with the channels of a pixel side by side:
//   [groups, images, D, H, W, channels]
// A depthwise convolution has one group here, whose channels are those of the output: channel o is
// a copy of the input's channel o / outputs.
#pragma once

#include <array>
#include <cstring>

#include "int8_conv/cpu/transpose.h"
#include "int8_conv/shape.h"
#include "machine/cpu_isa.h"

namespace baraquant::int8_conv {

constexpr int64_t kChannelUnit = 16;  // channels of a depthwise convolution are a multiple of this

// What is read: [images, C, D, H, W], or [images, D, H, W, C].
struct Source {
  const uint8_t* data;
  bool is_channels_last;
};

class ImageLayout {
 public:
  explicit ImageLayout(const Shape& shape)
      : shape_(shape),
        size_(shape.padded()),
        groups_(shape.is_depthwise() ? 1 : shape.groups),
        channels_(shape.is_depthwise()
                      ? (shape.all_outputs() + kChannelUnit - 1) / kChannelUnit * kChannelUnit
                      : shape.inputs) {}

  int64_t channels() const { return channels_; }
  int64_t group_bytes() const { return shape_.images * volume(size_) * channels_; }
  // One by one: their product may be more than an int64 holds, which the allocation then says.
  std::array<int64_t, 6> sizes() const {
    return {groups_, shape_.images, size_[0], size_[1], size_[2], channels_};
  }
  // Lines along the width, in all groups and images.
  int64_t lines() const { return groups_ * shape_.images * size_[0] * size_[1]; }
  int64_t line_bytes() const { return size_[2] * channels_; }

  // Whether the source itself has this layout.
  bool is_that_of(const Source& source) const {
    const bool is_flat = source.is_channels_last || shape_.all_inputs() == 1;
    return is_flat && !shape_.is_padded() && groups_ == 1 && !shape_.is_depthwise();
  }

  // Where the kernel's first place lies at row m of the product, in a group's image.
  int64_t origin(int64_t m) const {
    const Space &out = shape_.out, &stride = shape_.stride;
    const int64_t w = m % out[2], h = m / out[2] % out[1], rest = m / out[2] / out[1];
    const int64_t d = rest % out[0], image = rest / out[0];
    return offset(image * size_[0] + d * stride[0], h * stride[1], w * stride[2]);
  }
  // How far a place of the kernel lies from its first one.
  int64_t step(int64_t d, int64_t h, int64_t w) const {
    const Space& dilation = shape_.dilation;
    return offset(d * dilation[0], h * dilation[1], w * dilation[2]);
  }

  // Writes one line. NB: the zero point wraps where the input's integers do not hold it.
  void write_line(const Source& source, int64_t line, uint8_t zero_point, uint8_t* to) const {
    const int64_t y = line % size_[1] - shape_.padding[1];
    const int64_t plane = line / size_[1];
    const int64_t z = plane % size_[0] - shape_.padding[0];
    const int64_t image = plane / size_[0] % shape_.images;
    const int64_t group = plane / size_[0] / shape_.images;
    const bool is_inside = y >= 0 && y < shape_.in[1] && z >= 0 && z < shape_.in[0];
    const int64_t left = is_inside ? shape_.padding[2] * channels_ : line_bytes();
    const int64_t inside = is_inside ? shape_.in[2] * channels_ : 0;
    std::memset(to, zero_point, left);
    std::memset(to + left + inside, zero_point, line_bytes() - left - inside);
    if (is_inside) write_inside(source, image, group, z, y, to + left);
  }

 private:
  int64_t offset(int64_t plane, int64_t h, int64_t w) const {
    return ((plane * size_[1] + h) * size_[2] + w) * channels_;
  }

  BARAQUANT_HD void write_inside(const Source& source, int64_t image, int64_t group, int64_t z,
                                 int64_t y, uint8_t* to) const {
    const Space& in = shape_.in;
    const int64_t all = shape_.all_inputs(), width = in[2], line = (z * in[1] + y) * width;
    const int64_t copies = shape_.is_depthwise() ? shape_.outputs : 1;
    const int64_t count = shape_.is_depthwise() ? all : channels_, first = group * count;
    if (copies * count < channels_) std::memset(to, 0, width * channels_);
    if (source.is_channels_last) {
      const uint8_t* const from = source.data + (image * volume(in) + line) * all + first;
      if (copies == 1) return copy_pixels(from, all, count, width, to);
      return spread(from, 1, all, count, copies, width, to);
    }
    const uint8_t* const from = source.data + (image * all + first) * volume(in) + line;
    if (copies == 1) return transpose(from, volume(in), count, width, to, channels_);
    spread(from, volume(in), 1, count, copies, width, to);
  }

  BARAQUANT_HD void copy_pixels(const uint8_t* from, int64_t stride, int64_t count, int64_t width,
                                uint8_t* to) const {
    if (stride == count && count == channels_) {
      std::memcpy(to, from, width * count);
      return;
    }
    for (int64_t x = 0; x < width; ++x) std::memcpy(to + x * channels_, from + x * stride, count);
  }

  // Copies each channel `copies` times.
  BARAQUANT_HD void spread(const uint8_t* from, int64_t channel, int64_t pixel, int64_t count,
                           int64_t copies, int64_t width, uint8_t* to) const {
    for (int64_t x = 0; x < width; ++x) {
      for (int64_t c = 0; c < count; ++c) {
        std::memset(to + x * channels_ + c * copies, from[c * channel + x * pixel], copies);
      }
    }
  }

  Shape shape_;
  Space size_;
  int64_t groups_, channels_;
};

// Writes the lines of an image in parallel, as blocked.h of int8_mm does its tasks.
template <typename Parallel>
void write_image(const ImageLayout& layout, const Source& source, uint8_t zero_point, uint8_t* to,
                 const Parallel& parallel) {
  constexpr int64_t kBytes = int64_t(1) << 15;  // the fewest of one task
  parallel(layout.lines(), kBytes / (layout.line_bytes() + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t line = begin; line < end; ++line) {
      layout.write_line(source, line, zero_point, to + line * layout.line_bytes());
    }
  });
}

}  // namespace baraquant::int8_conv
