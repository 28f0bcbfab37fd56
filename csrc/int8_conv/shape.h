// SPDX-License-Identifier: BSD-3-Clause
// The sizes of a convolution, without torch. Space always has three dimensions: missing ones come
// first and have size 1.
#pragma once

#include <array>
#include <cstdint>

namespace baraquant::int8_conv {

using Space = std::array<int64_t, 3>;  // depth, height, width

constexpr int64_t volume(const Space& space) { return space[0] * space[1] * space[2]; }

struct Shape {
  int64_t images = 0, groups = 1;
  int64_t inputs = 0, outputs = 0;  // channels of one group
  Space in = {1, 1, 1}, kernel = {1, 1, 1}, stride = {1, 1, 1}, padding = {0, 0, 0};
  Space dilation = {1, 1, 1}, out = {1, 1, 1};

  // The input's extent with its padding.
  Space padded() const {
    return {in[0] + 2 * padding[0], in[1] + 2 * padding[1], in[2] + 2 * padding[2]};
  }
  bool is_padded() const { return padding != Space{0, 0, 0}; }
  int64_t pixels() const { return volume(out); }      // of one output image
  int64_t rows() const { return images * pixels(); }  // of the product
  int64_t depth() const { return inputs * volume(kernel); }
  int64_t all_inputs() const { return groups * inputs; }
  int64_t all_outputs() const { return groups * outputs; }
  // Each output channel is the sum of a single input channel's values.
  bool is_depthwise() const { return inputs == 1 && groups > 1; }
};

}  // namespace baraquant::int8_conv
