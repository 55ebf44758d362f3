// Vectors of 16 floats on a processor with AVX2: GCC cuts its own vector types in two, and the few instructions that the
// kernels name are written out by their definition (Intel 64 and IA-32 Architectures Software Developer's Manual,
// volume 2).
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace emulated {
typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));

static inline Floats cvtph_ps(__m256i halves) {
  Floats all;
  const __m256 parts[] = {_mm256_cvtph_ps(_mm256_castsi256_si128(halves)),
                          _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))};
  std::memcpy(&all, parts, sizeof all);
  return all;
}

static inline Ints cvtepi8_epi32(__m128i bytes) {
  int8_t from[16];
  std::memcpy(from, &bytes, sizeof from);
  Ints all;
  for (int i = 0; i < 16; i++) all[i] = from[i];
  return all;
}

static inline Floats cvtepi32_ps(Ints x) { return __builtin_convertvector(x, Floats); }

static inline __m256i cvtneps_pbh(Floats x) {
  uint32_t bits[16];
  uint16_t rounded[16];
  std::memcpy(bits, &x, sizeof bits);
  for (int i = 0; i < 16; i++) rounded[i] = (bits[i] + 0x7FFF + ((bits[i] >> 16) & 1)) >> 16;
  __m256i all;
  std::memcpy(&all, rounded, sizeof all);
  return all;
}

// Products of neighbours, the odd ones first; each sum is rounded.
template <class Pairs>
static inline Floats dpbf16_ps(Floats sum, Pairs a, Pairs b) {
  Ints x, y;
  std::memcpy(&x, &a, sizeof x);
  std::memcpy(&y, &b, sizeof y);
  const int32_t high = int32_t(0xffff0000);
  sum += (Floats)(x & high) * (Floats)(y & high);
  return sum + (Floats)(x << 16) * (Floats)(y << 16);
}
}  // namespace emulated

#define _mm512_cvtph_ps emulated::cvtph_ps
#define _mm512_cvtepi8_epi32 emulated::cvtepi8_epi32
#define _mm512_cvtepi32_ps emulated::cvtepi32_ps
#define _mm512_cvtneps_pbh emulated::cvtneps_pbh
#define _mm512_dpbf16_ps emulated::dpbf16_ps
#define __AVX512F__ 1
#ifdef EMULATE_BF16
#define __AVX512BF16__ 1
#endif
