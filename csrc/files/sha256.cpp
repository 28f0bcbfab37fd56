// SPDX-License-Identifier: BSD-3-Clause
#include "files/sha256.h"

#include <algorithm>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

#include "machine/cpu_isa.h"

namespace baraquant::files {
namespace {

constexpr size_t kBlock = 64;

alignas(16) constexpr std::array<uint32_t, 64> kConstants = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t big_endian(const uint8_t* bytes) {
  return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | bytes[3];
}

void portable_block(std::array<uint32_t, 8>& state, const uint8_t* data) {
  std::array<uint32_t, 64> w;
  for (size_t t = 0; t < 16; ++t) w[t] = big_endian(data + 4 * t);
  for (size_t t = 16; t < 64; ++t) {
    const uint32_t x = w[t - 15], y = w[t - 2];
    w[t] = w[t - 16] + w[t - 7] + (std::rotr(x, 7) ^ std::rotr(x, 18) ^ x >> 3) +
           (std::rotr(y, 17) ^ std::rotr(y, 19) ^ y >> 10);
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (size_t t = 0; t < 64; ++t) {
    const uint32_t first = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                           ((e & f) ^ (~e & g)) + kConstants[t] + w[t];
    const uint32_t second =
        (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + first;
    d = c, c = b, b = a, a = first + second;
  }
  const std::array<uint32_t, 8> added = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < 8; ++i) state[i] += added[i];
}

#if defined(__x86_64__)

// Whether to use the CPU's instructions for SHA-256, which are several times as fast.
bool uses_instructions() {
  if (cpu_isa() == CpuIsa::kDefault) return false;
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool has_sha = __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & 1U << 29) != 0;
  return has_sha && __builtin_cpu_supports("sse4.1") != 0;
}

// The instructions hold the state as the words f, e, b, a and h, g, d, c (the lowest first), and
// compute two rounds at a time.
__attribute__((target("sha,sse4.1"))) void instruction_blocks(std::array<uint32_t, 8>& state,
                                                              const uint8_t* data, size_t count) {
  const __m128i reversed = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  auto as_int = [](uint32_t word) { return static_cast<int>(word); };
  const auto& s = state;
  __m128i abef = _mm_set_epi32(as_int(s[0]), as_int(s[1]), as_int(s[4]), as_int(s[5]));
  __m128i cdgh = _mm_set_epi32(as_int(s[2]), as_int(s[3]), as_int(s[6]), as_int(s[7]));
  for (; count > 0; --count, data += kBlock) {
    const __m128i abef_before = abef, cdgh_before = cdgh;
    __m128i w[4];  // the last 16 words of the schedule
    for (size_t four = 0; four < 16; ++four) {
      __m128i& now = w[four % 4];
      if (four < 4) {
        const auto* words = reinterpret_cast<const __m128i*>(data + 16 * four);
        now = _mm_shuffle_epi8(_mm_loadu_si128(words), reversed);
      } else {
        const __m128i next = w[(four + 1) % 4], third = w[(four + 2) % 4], last = w[(four + 3) % 4];
        now = _mm_add_epi32(_mm_sha256msg1_epu32(now, next), _mm_alignr_epi8(last, third, 4));
        now = _mm_sha256msg2_epu32(now, last);
      }
      const auto* constants = reinterpret_cast<const __m128i*>(&kConstants[4 * four]);
      const __m128i sums = _mm_add_epi32(now, _mm_load_si128(constants));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sums);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sums, 0x0e));
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  alignas(16) std::array<uint32_t, 4> first, second;
  _mm_store_si128(reinterpret_cast<__m128i*>(first.data()), abef);
  _mm_store_si128(reinterpret_cast<__m128i*>(second.data()), cdgh);
  state = {first[3], first[2], second[3], second[2], first[1], first[0], second[1], second[0]};
}

#endif

}  // namespace

void Sha256::blocks(const uint8_t* data, size_t count) {
#if defined(__x86_64__)
  static const bool is_fast = uses_instructions();
  if (is_fast) {
    instruction_blocks(state_, data, count);
    return;
  }
#endif
  for (size_t i = 0; i < count; ++i) portable_block(state_, data + i * kBlock);
}

void Sha256::update(const void* data, size_t size) {
  const auto* bytes = static_cast<const uint8_t*>(data);
  const size_t used = total_ % kBlock;
  total_ += size;
  if (used > 0) {
    const size_t taken = std::min(size, kBlock - used);
    if (taken > 0) std::memcpy(rest_.data() + used, bytes, taken);
    if (used + taken < kBlock) return;
    blocks(rest_.data(), 1);
    bytes += taken;
    size -= taken;
  }
  blocks(bytes, size / kBlock);
  if (size % kBlock > 0) std::memcpy(rest_.data(), bytes + size / kBlock * kBlock, size % kBlock);
}

std::string Sha256::hexdigest() {
  const uint64_t bits = total_ * 8;
  const std::array<uint8_t, kBlock> padding = {0x80};
  update(padding.data(), 1 + (2 * kBlock - 9 - total_ % kBlock) % kBlock);
  std::array<uint8_t, 8> length;
  for (size_t i = 0; i < 8; ++i) length[i] = static_cast<uint8_t>(bits >> (56 - 8 * i));
  update(length.data(), length.size());
  std::string text;
  for (const uint32_t word : state_) {
    for (int shift = 28; shift >= 0; shift -= 4) text += "0123456789abcdef"[word >> shift & 15];
  }
  return text;
}

}  // namespace baraquant::files
