// SPDX-License-Identifier: BSD-3-Clause
// The peak of a CPU's byte products: independent vpdpbusd instructions on registers alone, of 512
// bits where the CPU has AVX-512 VNNI, else of 256. The threads are OpenMP's, as PyTorch's are: threads
// of their own would share a core with one of those, which goes on spinning after its work.
#include <immintrin.h>

#include <cstdint>

namespace {

constexpr int kSums = 12;  // enough to hide the latency of two instructions a cycle
constexpr int kA = 3, kW = 5;

// Each returns the sum of what its registers hold in the end: kA * kW for each multiplication.

__attribute__((target("avx512f,avx512vnni"))) int64_t multiply_512(int64_t steps) {
  __m512i sums[kSums];
  const __m512i a = _mm512_set1_epi8(kA), w = _mm512_set1_epi8(kW);
#pragma GCC unroll 12
  for (int i = 0; i < kSums; ++i) sums[i] = _mm512_setzero_si512();
  for (int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 12
    for (int i = 0; i < kSums; ++i)
      asm volatile("vpdpbusd %2, %1, %0" : "+v"(sums[i]) : "v"(a), "v"(w));
  }
  int64_t total = 0;
#pragma GCC unroll 12
  for (int i = 0; i < kSums; ++i) total += 16 * int64_t{_mm512_cvtsi512_si32(sums[i])};
  return total;
}

__attribute__((target("avx2,avxvnni"))) int64_t multiply_256(int64_t steps) {
  __m256i sums[kSums];
  const __m256i a = _mm256_set1_epi8(kA), w = _mm256_set1_epi8(kW);
#pragma GCC unroll 12
  for (int i = 0; i < kSums; ++i) sums[i] = _mm256_setzero_si256();
  for (int64_t step = 0; step < 2 * steps; ++step) {
#pragma GCC unroll 12
    for (int i = 0; i < kSums; ++i) {
      asm volatile("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sums[i]) : "x"(a), "x"(w));
    }
  }
  int64_t total = 0;
#pragma GCC unroll 12
  for (int i = 0; i < kSums; ++i) total += 8 * int64_t{_mm256_cvtsi256_si32(sums[i])};
  return total;
}

}  // namespace

// At least `operations` multiplications and additions, shared out to `threads`; `wide` says which
// vectors. Returns the operations that the sums tell of, as long as none of these exceeds an int32
// (up to 5e10 operations a thread).
extern "C" int64_t multiply(int64_t operations, int threads, bool wide) {
  const int64_t steps = operations / (threads * kSums * 128) + 1;
  int64_t total = 0;
#pragma omp parallel num_threads(threads) reduction(+ : total)
  total += wide ? multiply_512(steps) : multiply_256(steps);
  return 2 * total / (kA * kW);
}
