// SPDX-License-Identifier: BSD-3-Clause
// The arithmetic of scaled quantization, without torch. Every kernel calls these functions.
//   v = C(x) * f, rounded once           f is the factor of the element's column or row
//   s = amax |v| / 127                   over the row or column, as range/math.h chooses it
//   nearest:     q = clamp(rint(v / s), -128, 127)                (elementwise/math.h)
//   stochastic:  q = clamp(floor(v / s + u), -128, 127),  u = (k + 1/2) / 2^16,  0 <= k < 2^16
// A NaN gives q = 0. k are 16 bits of Philox4x32-10 (Salmon et al. 2011, "Parallel Random Numbers:
// As Easy as 1, 2, 3"). They belong to the number of the element in its matrix, so they depend on
// no launch, thread or device. Stochastic rounding: Gupta et al. 2015, "Deep Learning with Limited
// Numerical Precision".
#pragma once

#include <cmath>
#include <cstdint>

#include "elementwise/fast_math.h"
#include "machine/host_device_math.h"
#include "machine/integers.h"
#include "range/math.h"

namespace baraquant::scaled {

using range::Key;

template <typename C, typename T>
BARAQUANT_HD C scaled(T x, C factor) {
  return to_compute<C>(x) * factor;
}

template <typename C>
BARAQUANT_HD affine::QuantRange<C> int8_range() {
  return {C(-128), C(127)};
}

template <typename C>
BARAQUANT_HD C scale_of(Key<C> magnitude) {
  const C amax = bit_cast<C>(magnitude);
  return range::usable_scale(amax / C(127), amax == C(0));
}

// ---- Random bits --------------------------------------------------------------------------------

// A state of the generator, as an op takes it: int64 [2] on the device. `step` is added to the
// second number, so that one state serves several calls.
struct Random {
  const int64_t* state = nullptr;  // null means rounding to the nearest
  uint64_t step = 0;
};

// The key and one half of the counter: the same for all elements of a call.
struct Stream {
  uint32_t key[2], offset[2];

  BARAQUANT_HD static Stream of(int64_t seed, uint64_t offset) {
    const auto bits = static_cast<uint64_t>(seed);
    return {{static_cast<uint32_t>(bits), static_cast<uint32_t>(bits >> 32)},
            {static_cast<uint32_t>(offset), static_cast<uint32_t>(offset >> 32)}};
  }
  BARAQUANT_HD static Stream of(const Random& random) {
    return of(random.state[0], static_cast<uint64_t>(random.state[1]) + random.step);
  }
};

// The elements that share one call of Philox.
constexpr int kOctet = 8;

// 16 random bits for each of eight elements, two in a word.
struct Octet {
  uint32_t words[4];

  BARAQUANT_HD uint32_t bits(int i) const { return (words[i / 2] >> (i % 2 * 16)) & 0xffffu; }
};

// The bits for the elements 8 * number to 8 * number + 7.
BARAQUANT_HD Octet random_octet(const Stream& stream, uint64_t number) {
  constexpr uint32_t kMultipliers[] = {0xD2511F53u, 0xCD9E8D57u};
  constexpr uint32_t kWeyl[] = {0x9E3779B9u, 0xBB67AE85u};
  uint32_t c0 = stream.offset[0], c1 = stream.offset[1];
  uint32_t c2 = static_cast<uint32_t>(number), c3 = static_cast<uint32_t>(number >> 32);
  uint32_t k0 = stream.key[0], k1 = stream.key[1];
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = static_cast<uint64_t>(kMultipliers[0]) * c0;
    const uint64_t b = static_cast<uint64_t>(kMultipliers[1]) * c2;
    const uint32_t next0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ k0;
    const uint32_t next2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ k1;
    c0 = next0;
    c1 = static_cast<uint32_t>(b);
    c2 = next2;
    c3 = static_cast<uint32_t>(a);
    k0 += kWeyl[0];
    k1 += kWeyl[1];
  }
  return {{c0, c1, c2, c3}};
}

// u from 16 bits, exactly.
BARAQUANT_HD float uniform(uint32_t bits) {
  return bit_cast<float>(0x3f800040u | (bits << 7)) - 1.0f;
}

BARAQUANT_HD uint32_t random_bits(const Stream& stream, int64_t element) {
  const auto number = static_cast<uint64_t>(element);
  return random_octet(stream, number / kOctet).bits(static_cast<int>(number % kOctet));
}

// ---- Sums of columns ----------------------------------------------------------------------------
// The rows of a piece, kPieceRows of them, are added up in C, one after the other. Lane l adds up the
// pieces l, l + kSumLanes, .. in float64, one after the other, and sum_of_lanes() the lanes. So the
// order depends on no launch, thread or device.

constexpr int kPieceRows = 32, kSumLanes = 8;

constexpr int64_t count_pieces(int64_t rows) { return divide_up(rows, kPieceRows); }

BARAQUANT_HD double sum_of_lanes(const double* lanes, int stride) {
  const auto pair = [&](int i) { return lanes[i * stride] + lanes[(i + 4) * stride]; };
  return (pair(0) + pair(2)) + (pair(1) + pair(3));
}

// ---- Rounding -----------------------------------------------------------------------------------

template <typename C>
BARAQUANT_HD int8_t round_nearest(C v, C scale,
                                  const affine::QuantRange<C>& range = int8_range<C>()) {
  const affine::Grid<C> grid(scale, C(0), range);
  return static_cast<int8_t>(grid.quantize_byte(v));
}

template <typename C>
BARAQUANT_HD int8_t round_stochastic(C v, C scale, uint32_t bits) {
  const C position = round_down(v / scale + static_cast<C>(uniform(bits)));
  const C q = affine::quantized_value(position, C(0), int8_range<C>());
  return static_cast<int8_t>(static_cast<int32_t>(q));
}

// The same bits with fewer instructions, for v of at most amax and the scale that amax gave.
//
// Note [Why FastColumn gives the same bits]
// Nearest: Note [Numbers that gave the scale] in elementwise/fast_math.h. Stochastic: its point 2 makes
// the quotient that of a division while |v| >= 2^-60. Below that, |v / s| < 2^-28 for the scales
// accepted here, and so is the quotient that is computed. u lies in [2^-17, 1 - 2^-17], so the sum
// lies in (0, 1), and both have the floor 0. The quotient is at most 127 + 2^-17, so the sum with u
// is below 2^22 and adding 1.5 * 2^23, rounded down, gives its floor in the low bits. That is at
// most 128, so a byte of 128 stands for 127; the sum is at least -127 - 2^-17 + 2^-17 = -127.
class FastColumn : private affine::OwnGrid<true> {
  using Base = affine::OwnGrid<true>;

 public:
  FastColumn() = default;
  BARAQUANT_HD explicit FastColumn(float scale) : Base(scale, 0.0f, int8_range<float>()) {}

  BARAQUANT_HD static bool accepts(float scale) { return scale >= 0x1p-32f && scale <= 0x1p64f; }

  BARAQUANT_HD uint32_t nearest(float v) const { return Base::quantize_byte(v); }
  BARAQUANT_HD uint32_t stochastic(float v, uint32_t bits) const {
    const float sum = Base::quotient(v) + uniform(bits);
#if defined(__CUDA_ARCH__)
    const float floored = __fadd_rd(sum, kRounder);
#else
    const float floored = round_down(sum) + kRounder;
#endif
    return bit_cast<uint32_t>(floored < kRounder + 127.0f ? floored : kRounder + 127.0f) & 0xffu;
  }
};

}  // namespace baraquant::scaled
