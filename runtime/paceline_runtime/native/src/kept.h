// Keys and values in the cache: float32, or 8 bits with a scale for each token and head, which is set when they are
// written (from the largest magnitude of the head). The codes are those of `kernels/reference/kv_cache.py`.
#pragma once
#include <immintrin.h>

#include <cmath>
#include <type_traits>

#include "simd.h"

// Mirrors the kinds in library.py. e4m3 as in "OCP 8-bit floating point", 2023.
enum class Kept : int32_t { f32 = 0, int8 = 1, e4m3 = 2 };

template <Kept K>
using Number = std::conditional_t<K == Kept::f32, float, std::conditional_t<K == Kept::int8, int8_t, uint8_t>>;

// Keys and values of one layer; scales [blocks, kv_heads, block_size] where they are kept in 8 bits, else null.
struct Cache {
  void *keys, *values;
  float *key_scales, *value_scales;
};

template <Kept K>
constexpr float MOST = K == Kept::int8 ? 127.f : 448.f;

// What `widen` gives has to be multiplied with it, beside the scale.
template <Kept K>
constexpr float UNIT = K == Kept::e4m3 ? 256.f : 1.f;

// The bits of e4m3 in the places of float16 are the number over 2^8 (exponents are biased by 7 and 15), subnormal ones
// included; and every processor with AVX2 converts float16.
template <class S>
static inline typename S::Floats widen_e4m3(const uint8_t* p) {
#if defined(__AVX512F__)
  if constexpr (S::lanes == 16) {
    const __m256i wide = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m256i sign = _mm256_and_si256(_mm256_slli_epi16(wide, 8), _mm256_set1_epi16(int16_t(0x8000)));
    const __m256i rest = _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16(0x3F80));
    return (typename S::Floats)_mm512_cvtph_ps(_mm256_or_si256(sign, rest));
  } else
#endif
  {
    static_assert(S::lanes == 8);
    const __m128i wide = _mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    const __m128i sign = _mm_and_si128(_mm_slli_epi16(wide, 8), _mm_set1_epi16(int16_t(0x8000)));
    const __m128i rest = _mm_and_si128(_mm_slli_epi16(wide, 7), _mm_set1_epi16(0x3F80));
    return (typename S::Floats)_mm256_cvtph_ps(_mm_or_si128(sign, rest));
  }
}

template <class S>
static inline typename S::Floats widen_int8(const int8_t* p) {
#if defined(__AVX512F__)
  if constexpr (S::lanes == 16) {
    return (typename S::Floats)_mm512_cvtepi32_ps(
        _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  } else
#endif
  {
    static_assert(S::lanes == 8);
    return (typename S::Floats)_mm256_cvtepi32_ps(
        _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
}

// A vector of the cache, less `UNIT` and scale.
template <class S, Kept K>
static inline typename S::Floats widen(const Number<K>* p) {
  if constexpr (K == Kept::f32)
    return load<S>(p);
  else if constexpr (K == Kept::int8)
    return widen_int8<S>(p);
  else
    return widen_e4m3<S>(p);
}

// Nearest e4m3 number, ties to even, held to +-448; NaN stays NaN.
static inline uint8_t to_e4m3(float x) {
  float magnitude = std::fabs(x);
  magnitude = magnitude > 448.f ? 448.f : magnitude;
  uint32_t bits, small, sign;
  std::memcpy(&bits, &magnitude, 4);
  std::memcpy(&sign, &x, 4);
  // Three of 23 bits of mantissa stay; the exponent's bias falls from 127 to 7.
  const uint32_t normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - 960;
  // Below 2^-6 numbers are multiples of 2^-9, which is the last place of a float32 at 2^14: the sum rounds.
  const float shifted = magnitude + 16384.f;
  std::memcpy(&small, &shifted, 4);
  const uint32_t code = x != x ? 0x7Fu : magnitude < 0.015625f ? small - 0x46800000u : normal;
  return uint8_t(code | (sign >> 31) << 7);
}

// Nearest whole number, ties to even, held to +-127; NaN becomes 0.
static inline int8_t to_int8(float x) {
  x = x > 127.f ? 127.f : x < -127.f ? -127.f : x;
  return x != x ? 0 : int8_t(std::nearbyint(x));
}

// One head of one token into the cache, its numbers `stride` apart; and its scale. A NaN goes into the scale, so that it
// shows in whatever sees the token.
template <Kept K>
static inline void keep(const float* x, int n, Number<K>* to, size_t stride, float* scale) {
  if constexpr (K == Kept::f32) {
    for (int d = 0; d < n; d++) to[size_t(d) * stride] = x[d];
  } else {
    float largest = 0.f;
    for (int d = 0; d < n; d++) {
      const float magnitude = std::fabs(x[d]);
      largest = magnitude > largest || magnitude != magnitude ? magnitude : largest;
    }
    const float factor = largest == 0.f ? 1.f : largest / MOST<K>;
    *scale = factor;
    for (int d = 0; d < n; d++) {
      if constexpr (K == Kept::int8)
        to[size_t(d) * stride] = to_int8(x[d] / factor);
      else
        to[size_t(d) * stride] = to_e4m3(x[d] / factor);
    }
  }
}

// Calls f(kind) with the kind as a constant.
template <class F>
static inline void with_kept(Kept kept, F&& f) {
  switch (kept) {
    case Kept::f32:
      return f(std::integral_constant<Kept, Kept::f32>{});
    case Kept::int8:
      return f(std::integral_constant<Kept, Kept::int8>{});
    case Kept::e4m3:
      return f(std::integral_constant<Kept, Kept::e4m3>{});
  }
}
