// Causal attention of a few query rows of one sequence over its blocks of the paged cache.
//
// Cache of a layer: keys [blocks, kv_heads, head_dim, block_size], values [blocks, kv_heads, block_size, head_dim]; so a
// vector holds the keys of neighbouring tokens, and no sum across lanes is needed. Where they are kept in 8 bits, scores
// are multiplied with the keys' scales and weights with the values', so that no number of the cache is by itself.
//
// The context is walked in stretches of about 128 tokens, counted from the sequence's first token. Each gives a softmax
// of its own (maximum, sum, weighted values), which is merged into what the earlier ones gave (Milakov and Gimelshein
// 2018; FlashAttention). What a query row computes, and in which order, so follows from its position alone: the result
// has the same bits whether it is computed alone or with others.
#pragma once
#include <cmath>

#include "gemm.h"
#include "kept.h"

constexpr int STRETCH = 128;     // tokens, rounded down to whole blocks; no block is longer
constexpr int QUERY_ROWS = 48;   // rows of a tile, unless one token's heads are more

struct CacheShape {
  int kv_heads;
  int head_dim;
  int block_size;
  size_t per_block() const { return size_t(kv_heads) * head_dim * block_size; }
  size_t per_head() const { return size_t(head_dim) * block_size; }
  int stretch() const { return STRETCH / block_size * block_size; }
};

// Scratch of one thread for `rows` query rows.
struct AttentionScratch {
  float* query;    // [head_dim/16][rows][16]
  float* scores;   // [STRETCH/16][rows][16]
  float* partial;  // [rows][head_dim]
  float* out;      // [rows][head_dim]
  float* maxima;   // [rows]
  float* sums;     // [rows]

  static size_t floats(int rows, int head_dim) {
    const size_t steps = (head_dim + STEP - 1) / STEP;
    return size_t(rows) * (steps * STEP + STRETCH + 2 * head_dim + 2) + 6 * 16;
  }
  AttentionScratch(float* p, int rows, int head_dim) {
    auto take = [&p](size_t n) {
      float* q = p;
      p += (n + 15) / 16 * 16;
      return q;
    };
    query = take(size_t(rows) * ((head_dim + STEP - 1) / STEP) * STEP);
    scores = take(size_t(rows) * STRETCH);
    partial = take(size_t(rows) * head_dim);
    out = take(size_t(rows) * head_dim);
    maxima = take(rows);
    sums = take(rows);
  }
};

// sums[i][v] += a[i] * b[v] over k; b's rows are b_stride numbers apart, its vectors given one by one.
template <class S, Kept K, int ROWS, int VECTORS>
__attribute__((always_inline)) static inline void accumulate(typename S::Floats (&sums)[ROWS][VECTORS], const float* a,
                                                             const Number<K>* const* b, int b_stride, int k) {
  for (int j = 0; j < k; j++) {
    typename S::Floats y[VECTORS];
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; v++) y[v] = widen<S, K>(b[v] + size_t(j) * b_stride);
#pragma GCC unroll 6
    for (int i = 0; i < ROWS; i++) {
      const typename S::Floats x = splat<S>(a[i * STEP + j]);
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS; v++) sums[i][v] += x * y[v];
    }
  }
}

// Scores of ROWS rows against VECTORS units (vectors of keys).
template <class S, Kept K, int ROWS, int VECTORS>
static void score(const float* query, int stride, const Number<K>* const* keys, const float* const* scales,
                  int block_size, int head_dim, float* scores, int unit) {
  typename S::Floats sums[ROWS][VECTORS];
#pragma GCC unroll 6
  for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; v++) sums[i][v] = typename S::Floats{};
  const Number<K>* at[VECTORS];
  for (int v = 0; v < VECTORS; v++) at[v] = keys[v];
  for (int d = 0; d < head_dim; d += STEP, query += stride) {
    const int n = head_dim - d < STEP ? head_dim - d : STEP;
    accumulate<S, K, ROWS, VECTORS>(sums, query, at, block_size, n);
    for (int v = 0; v < VECTORS; v++) at[v] += size_t(n) * block_size;
  }
#pragma GCC unroll 6
  for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; v++) {
      if constexpr (K != Kept::f32) sums[i][v] *= load<S>(scales[v]) * splat<S>(UNIT<K>);
      const int token = (unit + v) * S::lanes;
      store<S>(scores + size_t(token / STEP) * stride + i * STEP + token % STEP, sums[i][v]);
    }
}

// Weighted values of ROWS rows, VECTORS vectors of the head, over `tokens` tokens.
template <class S, Kept K, int ROWS, int VECTORS>
static void weigh(const float* weights, int stride, const Number<K>* const* values, int dim, int head_dim, int tokens,
                  float* out) {
  typename S::Floats sums[ROWS][VECTORS];
#pragma GCC unroll 6
  for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; v++) sums[i][v] = typename S::Floats{};
  for (int unit = 0, token = 0; token < tokens; unit++, token += S::lanes) {
    const Number<K>* at[VECTORS];
    for (int v = 0; v < VECTORS; v++) at[v] = values[unit] + dim + v * S::lanes;
    const int n = tokens - token < S::lanes ? tokens - token : S::lanes;
    accumulate<S, K, ROWS, VECTORS>(sums, weights + size_t(token / STEP) * stride + token % STEP, at, head_dim, n);
  }
#pragma GCC unroll 6
  for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; v++) store<S>(out + size_t(i) * head_dim + dim + v * S::lanes, sums[i][v]);
}

constexpr int ATTENTION_ROWS = REGISTERS == 32 ? 6 : 3;
constexpr int ATTENTION_VECTORS = 4;

// Calls f(rows, vectors) with both as constants.
template <class F>
static inline void with_tile(int rows, int vectors, F&& f) {
  auto inner = [&](auto r) {
    switch (vectors) {
      case 1:
        return f(r, std::integral_constant<int, 1>{});
      case 2:
        return f(r, std::integral_constant<int, 2>{});
      case 3:
        return f(r, std::integral_constant<int, 3>{});
      default:
        return f(r, std::integral_constant<int, 4>{});
    }
  };
  switch (rows) {
    case 1:
      return inner(std::integral_constant<int, 1>{});
    case 2:
      return inner(std::integral_constant<int, 2>{});
    case 3:
      return inner(std::integral_constant<int, 3>{});
#if defined(__AVX512F__)
    case 4:
      return inner(std::integral_constant<int, 4>{});
    case 5:
      return inner(std::integral_constant<int, 5>{});
    case 6:
      return inner(std::integral_constant<int, 6>{});
#endif
  }
}

// Scores of one row become weights, up to `valid` tokens; zeros behind, up to `units` vectors.
template <class S>
__attribute__((noinline)) static void soften(float* scores, int stride, int units, int valid, float& top, float& total) {
  using F = typename S::Floats;
  auto at = [&](int unit) {
    const int token = unit * S::lanes;
    return scores + size_t(token / STEP) * stride + token % STEP;
  };
  const int whole = valid / S::lanes, rest = valid % S::lanes;
  float best = -INFINITY;
  if (whole > 0) {
    F m = load<S>(at(0));
    for (int u = 1; u < whole; u++) m = maximum<S>(load<S>(at(u)), m);
    best = largest<S>(m);
  }
  for (int i = 0; i < rest; i++) best = at(whole)[i] > best ? at(whole)[i] : best;
  const F shift = splat<S>(best);
  F sums{};
  for (int u = 0; u < units; u++) {
    F w{};
    if (u < whole) {
      w = exponential<S>(load<S>(at(u)) - shift);
    } else if (u == whole && rest) {
      alignas(64) float kept[S::lanes];
      store<S>(kept, exponential<S>(load<S>(at(u)) - shift));
      for (int i = rest; i < S::lanes; i++) kept[i] = 0.f;  // keys not written yet may hold anything
      w = load<S>(kept);
    }
    sums += w;
    store<S>(at(u), w);
  }
  top = best;
  total = sum<S>(sums);
}

// Weights of one row times the scales of the values.
template <class S, Kept K>
static void scale_weights(float* weights, int stride, int units, const float* const* scales) {
  for (int u = 0; u < units; u++) {
    const int token = u * S::lanes;
    float* at = weights + size_t(token / STEP) * stride + token % STEP;
    store<S>(at, load<S>(at) * (load<S>(scales[u]) * splat<S>(UNIT<K>)));
  }
}

template <class S>
__attribute__((noinline)) static void merge(float* out, const float* partial, int head_dim, float& top, float& total,
                                            float new_top, float new_total) {
  const float best = new_top > top ? new_top : top;
  const float keep = std::exp(top - best), take = std::exp(new_top - best);
  for (int d = 0; d < head_dim; d += S::lanes) {
    const auto kept = load<S>(out + d) * splat<S>(keep);
    store<S>(out + d, load<S>(partial + d) * splat<S>(take) + kept);
  }
  top = best;
  total = std::fma(new_total, take, total * keep);
}

// Tokens `position` to `position + tokens` of a sequence, the `group` query heads of key-value head `head`.
//
// query and out point to the first token's first of these heads; their tokens are q_stride and out_stride floats apart.
template <class S, Kept K>
static void attend(const CacheShape& shape, const Cache& cache, const int32_t* blocks, int head, int group,
                   int position, int tokens, const float* query, size_t q_stride, float* out, size_t out_stride,
                   float* memory) {
  const auto* keys = static_cast<const Number<K>*>(cache.keys);
  const auto* values = static_cast<const Number<K>*>(cache.values);
  const int rows = tokens * group, dim = shape.head_dim, stride = rows * STEP;
  const int context = position + tokens, stretch = shape.stretch();
  AttentionScratch s(memory, rows, dim);
  const float scale = 1.f / std::sqrt(float(dim));
  for (int t = 0; t < tokens; t++)
    for (int g = 0; g < group; g++) {
      const float* row = query + t * q_stride + g * dim;
      spread(dim, s.query + (t * group + g) * STEP, stride, [=](int d) { return row[d] * scale; });
    }
  for (int start = 0; start < context; start += stretch) {
    const int length = context - start < stretch ? context - start : stretch;
    const int units = (length + S::lanes - 1) / S::lanes;
    const Number<K>*key_of[STRETCH / S::lanes], *value_of[STRETCH / S::lanes];
    const float *key_scale[STRETCH / S::lanes], *value_scale[STRETCH / S::lanes];
    for (int u = 0; u < units; u++) {
      const int token = start + u * S::lanes, inside = token % shape.block_size;
      const size_t base = blocks[token / shape.block_size] * shape.per_block() + head * shape.per_head();
      key_of[u] = keys + base + inside;
      value_of[u] = values + base + size_t(inside) * dim;
      if constexpr (K != Kept::f32) {
        const size_t at = (size_t(blocks[token / shape.block_size]) * shape.kv_heads + head) * shape.block_size + inside;
        key_scale[u] = cache.key_scales + at;
        value_scale[u] = cache.value_scales + at;
      }
    }
    for (int row = 0; row < rows; row += ATTENTION_ROWS)
      for (int u = 0; u < units; u += ATTENTION_VECTORS)
        with_tile(rows - row < ATTENTION_ROWS ? rows - row : ATTENTION_ROWS,
                  units - u < ATTENTION_VECTORS ? units - u : ATTENTION_VECTORS, [&](auto r, auto v) {
                    score<S, K, r(), v()>(s.query + row * STEP, stride, key_of + u, key_scale + u, shape.block_size,
                                          dim, s.scores + row * STEP, u);
                  });
    // A row sees nothing of a stretch that begins behind it; its weights are then zero and nothing is merged.
    float tops[rows], totals[rows];
    for (int row = 0; row < rows; row++) {
      const int limit = position + row / group + 1 - start;
      soften<S>(s.scores + row * STEP, stride, units, limit < 0 ? 0 : limit < length ? limit : length, tops[row],
                totals[row]);
      if constexpr (K != Kept::f32) scale_weights<S, K>(s.scores + row * STEP, stride, units, value_scale);
    }
    float* target = start == 0 ? s.out : s.partial;
    for (int row = 0; row < rows; row += ATTENTION_ROWS)
      for (int d = 0; d < dim; d += ATTENTION_VECTORS * S::lanes)
        with_tile(rows - row < ATTENTION_ROWS ? rows - row : ATTENTION_ROWS,
                  dim - d < ATTENTION_VECTORS * S::lanes ? (dim - d) / S::lanes : ATTENTION_VECTORS,
                  [&](auto r, auto v) {
                    weigh<S, K, r(), v()>(s.scores + row * STEP, stride, value_of, d, dim, length,
                                          target + size_t(row) * dim);
                  });
    for (int row = 0; row < rows; row++) {
      if (start == 0) {
        s.maxima[row] = tops[row];
        s.sums[row] = totals[row];
      } else if (position + row / group >= start) {
        merge<S>(s.out + size_t(row) * dim, s.partial + size_t(row) * dim, dim, s.maxima[row], s.sums[row], tops[row],
                 totals[row]);
      }
    }
  }
  for (int t = 0; t < tokens; t++)
    for (int g = 0; g < group; g++) {
      const int row = t * group + g;
      const auto inverse = splat<S>(1.f / s.sums[row]);
      for (int d = 0; d < dim; d += S::lanes)
        store<S>(out + t * out_stride + g * dim + d, load<S>(s.out + size_t(row) * dim + d) * inverse);
    }
}
