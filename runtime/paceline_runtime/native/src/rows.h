// What is done to single rows of activations, and the memory they lie in.
//
// Functions that different phases share are never inlined: each copy could round in its own way.
#pragma once
#include <cmath>
#include <cstdlib>
#include <memory>
#include <new>

#include "gemm.h"

static inline int round_up(int n, int to) { return (n + to - 1) / to * to; }

class AlignedFloats {
 public:
  // Room for n; what was there is lost if it grows.
  float* ensure(size_t n) {
    if (n > size_) {
      data_.reset();
      size_ = 0;
      data_.reset(static_cast<float*>(std::aligned_alloc(64, (n * 4 + 63) / 64 * 64)));
      if (!data_) throw std::bad_alloc();
      size_ = n;
    }
    return data_.get();
  }
  float* get() const { return data_.get(); }

 private:
  struct Free {
    void operator()(float* p) const { std::free(p); }
  };
  std::unique_ptr<float, Free> data_;
  size_t size_ = 0;
};

// x / rms(x) * weight, as a row of a block.
__attribute__((noinline)) static void normalise(const float* x, const float* weight, int n, float eps, float* out,
                                                int stride) {
  Floats a{}, b{};
  int i = 0;
  for (; i + 2 * LANES <= n; i += 2 * LANES) {
    const Floats u = load(x + i), v = load(x + i + LANES);
    a += u * u;
    b += v * v;
  }
  float total = sum(a + b);
  for (; i < n; i++) total += x[i] * x[i];
  const float scale = 1.f / std::sqrt(total / n + eps);
  spread(n, out, stride, [=](int k) { return x[k] * scale * weight[k]; });
}

static inline void copy_row(const float* x, int n, float* out, int stride) {
  spread(n, out, stride, [=](int k) { return x[k]; });
}

static inline Floats silu(Floats x) { return x / (splat(1.f) + exponential(Floats{} - x)); }

// Turn the pairs (i, i + dim/2) of a head by the angles of its position.
__attribute__((noinline)) static void rotate(float* head, int dim, const float* cos, const float* sin) {
  const int half = dim / 2;
  for (int i = 0; i < half; i++) {
    const float a = head[i], b = head[half + i];
    head[i] = a * cos[i] - b * sin[i];
    head[half + i] = b * cos[i] + a * sin[i];
  }
}

static inline float widen(uint16_t half) {
  const uint32_t bits = uint32_t(half) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
