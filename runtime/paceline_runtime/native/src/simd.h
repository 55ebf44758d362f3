// Vectors of floats as the compiler's own extension, so that one source serves every instruction set: the flags choose
// the width. Products that are added become fused multiply-adds (-ffp-contract=fast, GCC's default).
#pragma once
#include <cstdint>
#include <cstring>

template <int N>
struct Simd {
  static constexpr int lanes = N;
  typedef float Floats __attribute__((vector_size(4 * N)));
  typedef int32_t Ints __attribute__((vector_size(4 * N)));
  typedef float Unaligned __attribute__((vector_size(4 * N), aligned(4), may_alias));
  typedef int32_t UnalignedInts __attribute__((vector_size(4 * N), aligned(4), may_alias));
  typedef int32_t UnalignedInt __attribute__((aligned(4), may_alias));
  typedef uint32_t Words __attribute__((vector_size(4 * N)));
};

#if defined(__AVX512F__)
constexpr int LANES = 16;
constexpr int REGISTERS = 32;
#elif defined(__AVX2__) && defined(__FMA__)
constexpr int LANES = 8;
constexpr int REGISTERS = 16;
#else
#error "AVX2 with FMA, or AVX-512, is needed"
#endif

using Wide = Simd<LANES>;
using Floats = Wide::Floats;
using Ints = Wide::Ints;
using Words = Wide::Words;

template <class S = Wide>
static inline typename S::Floats load(const float* p) {
  return *reinterpret_cast<const typename S::Unaligned*>(p);
}

template <class S = Wide>
static inline void store(float* p, typename S::Floats v) {
  *reinterpret_cast<typename S::Unaligned*>(p) = v;
}

template <class S = Wide>
static inline typename S::Floats splat(float x) {
  return x - typename S::Floats{};
}

template <class S = Wide>
static inline typename S::Floats maximum(typename S::Floats a, typename S::Floats b) {
  return a > b ? a : b;
}

// Halves are folded onto each other, so the order of the sum is fixed by the width alone.
template <class S = Wide>
static inline float sum(typename S::Floats v) {
  float x[S::lanes];
  store<S>(x, v);
  for (int n = S::lanes / 2; n > 0; n /= 2)
    for (int i = 0; i < n; i++) x[i] += x[i + n];
  return x[0];
}

template <class S = Wide>
static inline float largest(typename S::Floats v) {
  float x[S::lanes];
  store<S>(x, v);
  for (int n = S::lanes / 2; n > 0; n /= 2)
    for (int i = 0; i < n; i++) x[i] = x[i] > x[i + n] ? x[i] : x[i + n];
  return x[0];
}

// e^x to about one unit in the last place: x = n ln 2 + r, a polynomial in r (Cephes expf), n into the exponent.
// Below -87 the result is 0 within float32's normal range; arguments above 88 do not occur (softmax, silu of -x <= 88).
template <class S = Wide>
static inline typename S::Floats exponential(typename S::Floats x) {
  using F = typename S::Floats;
  using I = typename S::Ints;
  const F low = splat<S>(-87.f), high = splat<S>(88.f);
  x = x > high ? high : x;
  const I tiny = x < low;
  x = tiny ? low : x;
  const F magic = splat<S>(12582912.f);  // 1.5 x 2^23: adding it rounds to a whole number
  const F shifted = x * splat<S>(1.44269504f) + magic;
  const F n = shifted - magic;
  F r = x - n * splat<S>(0.693359375f);
  r = r - n * splat<S>(-2.12194440e-4f);
  F p = splat<S>(1.9875691500e-4f);
  p = p * r + splat<S>(1.3981999507e-3f);
  p = p * r + splat<S>(8.3334519073e-3f);
  p = p * r + splat<S>(4.1665795894e-2f);
  p = p * r + splat<S>(1.6666665459e-1f);
  p = p * r + splat<S>(0.5f);
  p = p * (r * r) + (r + splat<S>(1.f));
  const I power = ((I)shifted - (I)magic + 127) << 23;
  return tiny ? F{} : p * (F)power;
}
