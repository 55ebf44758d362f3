// Products with packed weights: y = x W^T.
//
// A weight [N, K] is kept as panels of 2 x LANES columns of y: [panels][K][2 x LANES], in float32, or in bfloat16 with
// the two vectors of a row in the low and high halves of 32-bit lanes. Rows of x come in blocks of at most BLOCK_ROWS,
// laid out [K/16][rows][16], so that the kernel reads them from one pointer with constant offsets.
//
// Every element of y is one chain of fused multiply-adds in the order of K, begun at zero. Where a chain is interrupted
// it is stored and taken up again as it was. Hence a row of y has the same bits however many rows it is computed with,
// however they are cut into tiles, and whichever thread does it.
//
// Where the processor multiplies bfloat16 itself, rows of x are rounded to it for bfloat16 weights, and a link of the
// chain is the sum of two products: twice the rate, with the same promise.
#pragma once
#include "simd.h"

#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

constexpr int PANEL = 2 * LANES;
constexpr int STEP = 16;                            // floats of one row that lie together in a block
constexpr int TILE_ROWS = REGISTERS == 32 ? 12 : 6;  // accumulators: 2 per row; the rest holds weights and a broadcast
constexpr int BLOCK_ROWS = 72;
constexpr int CHUNK_K = 1024;                       // with BLOCK_ROWS rows 288 KiB: a part of any level-2 cache
constexpr int PREFETCH = 8192;                      // bytes ahead in a panel: a memory latency at full rate

enum class Weights : int32_t { f32 = 0, bf16 = 1 };

struct Matrix {
  const char* panels;
  const float* bias;  // padded to whole panels, or null
  int32_t rows;       // N
  int32_t columns;    // K

  int num_panels() const { return (rows + PANEL - 1) / PANEL; }
};

static inline size_t panel_bytes(Weights kind, int columns) {
  return size_t(columns) * PANEL * (kind == Weights::f32 ? 4 : 2);
}

// One block of rows of x.
struct Block {
  float* data;
  int rows;
  int stride;  // floats between groups of STEP columns
};

// Write value(0) to value(n - 1) as one row of a block.
template <class Value>
static inline void spread(int n, float* out, int stride, Value&& value) {
  int k = 0;
  for (; k + STEP <= n; k += STEP, out += stride)
    for (int j = 0; j < STEP; j++) out[j] = value(k + j);
  for (int j = 0; k + j < n; j++) out[j] = value(k + j);
}

template <Weights kind>
static inline void load_pair(const char* w, Floats& low, Floats& high) {
  if constexpr (kind == Weights::f32) {
    low = load(reinterpret_cast<const float*>(w));
    high = load(reinterpret_cast<const float*>(w) + LANES);
  } else {
    const Ints both = *reinterpret_cast<const Wide::UnalignedInts*>(w);
    low = (Floats)(both << 16);
    high = (Floats)(both & int32_t(0xffff0000));
  }
}

// Sums of a tile, as they were left in c, or from zero.
template <int ROWS, int PANELS>
__attribute__((always_inline)) static inline void take_up(Floats (&sums)[PANELS][ROWS][2], const float* c,
                                                          size_t c_stride, bool first) {
#pragma GCC unroll 12
  for (int p = 0; p < PANELS; p++)
#pragma GCC unroll 12
    for (int i = 0; i < ROWS; i++)
      for (int v = 0; v < 2; v++)
        sums[p][i][v] = first ? Floats{} : load(c + (p * c_stride + i) * PANEL + v * LANES);
}

template <int ROWS, int PANELS>
__attribute__((always_inline)) static inline void put_down(const Floats (&sums)[PANELS][ROWS][2], float* c,
                                                           size_t c_stride) {
#pragma GCC unroll 12
  for (int p = 0; p < PANELS; p++)
#pragma GCC unroll 12
    for (int i = 0; i < ROWS; i++)
      for (int v = 0; v < 2; v++) store(c + (p * c_stride + i) * PANEL + v * LANES, sums[p][i][v]);
}

// ROWS rows by PANELS panels over `k` columns; c is [PANELS][c_stride][PANEL].
template <int ROWS, int PANELS, Weights kind>
static void kernel(const float* a, int a_stride, const char* w, size_t panel_size, int k, float* c, size_t c_stride,
                   bool first, int prefetch) {
  constexpr int ROW_BYTES = PANEL * (kind == Weights::f32 ? 4 : 2);
  Floats sums[PANELS][ROWS][2];
  take_up(sums, c, c_stride, first);
  for (; k > 0; k -= STEP, a += a_stride) {
    const int n = k < STEP ? k : STEP;
#pragma GCC unroll 2
    for (int j = 0; j < n; j++, w += ROW_BYTES) {
#pragma GCC unroll 12
      for (int p = 0; p < PANELS; p++) {
        Floats low, high;
        const char* row = w + p * panel_size;
        for (int line = 0; line < ROW_BYTES; line += 64) __builtin_prefetch(row + prefetch + line);
        load_pair<kind>(row, low, high);
#pragma GCC unroll 12
        for (int i = 0; i < ROWS; i++) {
          const Floats x = splat(a[i * STEP + j]);
          sums[p][i][0] += x * low;
          sums[p][i][1] += x * high;
        }
      }
    }
  }
  put_down(sums, c, c_stride);
}

#if defined(__AVX512BF16__)
// `columns` floats of each row of a block become bfloat16, in the first half of the place of each group of STEP.
static inline void narrow_rows(const Block& x, int columns) {
  for (int k = 0; k < columns; k += STEP)
    for (int i = 0; i < x.rows; i++) {
      float* group = x.data + size_t(k / STEP) * x.stride + i * STEP;
      for (int j = columns - k; j < STEP; j++) group[j] = 0.f;
      _mm256_store_si256(reinterpret_cast<__m256i*>(group), (__m256i)_mm512_cvtneps_pbh((__m512)load(group)));
    }
}

// As `kernel`, for rows that went through `narrow_rows`. Two lines of a panel are paired in registers: the halves of a
// lane are then neighbours in K.
template <int ROWS, int PANELS>
static void narrow_kernel(const float* a, int a_stride, const char* w, size_t panel_size, int k, float* c,
                          size_t c_stride, bool first, int prefetch) {
  constexpr int LINE = PANEL * 2;
  Floats sums[PANELS][ROWS][2];
  take_up(sums, c, c_stride, first);
  for (; k > 0; k -= STEP, a += a_stride) {
    const int n = k < STEP ? k : STEP;
    for (int j = 0; j < n; j += 2, w += 2 * LINE) {
#pragma GCC unroll 12
      for (int p = 0; p < PANELS; p++) {
        const char* line = w + p * panel_size;
        __builtin_prefetch(line + prefetch);
        __builtin_prefetch(line + prefetch + LINE);
        const Ints even = *reinterpret_cast<const Wide::UnalignedInts*>(line);
        // An odd last column has no neighbour: what lies behind it belongs to another panel.
        const Ints odd = j + 1 < n ? *reinterpret_cast<const Wide::UnalignedInts*>(line + LINE) : Ints{};
        const Ints low = (even & 0xffff) | (odd << 16);
        const Ints high = (Ints)((Words)even >> 16) | (odd & int32_t(0xffff0000));
#pragma GCC unroll 12
        for (int i = 0; i < ROWS; i++) {
          const Ints x = Ints{} + reinterpret_cast<const Wide::UnalignedInt*>(a + i * STEP)[j / 2];
          sums[p][i][0] = (Floats)_mm512_dpbf16_ps((__m512)sums[p][i][0], (__m512bh)x, (__m512bh)low);
          sums[p][i][1] = (Floats)_mm512_dpbf16_ps((__m512)sums[p][i][1], (__m512bh)x, (__m512bh)high);
        }
      }
    }
  }
  put_down(sums, c, c_stride);
}
#endif

template <int ROWS, int PANELS, Weights kind>
static constexpr auto kernel_for() {
#if defined(__AVX512BF16__)
  if constexpr (kind == Weights::bf16)
    return narrow_kernel<ROWS, PANELS>;
  else
#endif
    return kernel<ROWS, PANELS, kind>;
}

using Kernel = void (*)(const float*, int, const char*, size_t, int, float*, size_t, bool, int);

// Few rows go over two panels at a time: one panel's chains would leave the multipliers waiting.
constexpr int PAIR_ROWS = 3;

template <Weights kind>
static inline Kernel pick_kernel(int rows, bool pair) {
#define PACELINE_KERNEL(R) \
  case R:                  \
    return kernel_for<(R <= TILE_ROWS ? R : 1), 1, kind>();
  if (pair) switch (rows) {
      case 1:
        return kernel_for<1, 2, kind>();
      case 2:
        return kernel_for<2, 2, kind>();
      case 3:
        return kernel_for<3, 2, kind>();
    }
  switch (rows) {
    PACELINE_KERNEL(1)
    PACELINE_KERNEL(2)
    PACELINE_KERNEL(3)
    PACELINE_KERNEL(4)
    PACELINE_KERNEL(5)
    PACELINE_KERNEL(6)
    PACELINE_KERNEL(7)
    PACELINE_KERNEL(8)
    PACELINE_KERNEL(9)
    PACELINE_KERNEL(10)
    PACELINE_KERNEL(11)
    default:
      return kernel_for<TILE_ROWS, 1, kind>();
  }
#undef PACELINE_KERNEL
}

constexpr int GROUP_PANELS = 8;
constexpr size_t SCRATCH_FLOATS = size_t(GROUP_PANELS) * BLOCK_ROWS * PANEL;

// Panels [begin, end) of y for one block of rows; finish(panel, sums) is called with sums [rows][PANEL] of each.
template <Weights kind, class Finish>
static void multiply(const Block& x, const Matrix& m, int begin, int end, float* scratch, Finish&& finish) {
  const size_t size = panel_bytes(kind, m.columns), row_bytes = size / m.columns;
  const int chunks = (m.columns + CHUNK_K - 1) / CHUNK_K;
  const int chunk = ((m.columns + chunks - 1) / chunks + STEP - 1) / STEP * STEP;
  const int tiles = (x.rows + TILE_ROWS - 1) / TILE_ROWS, base = x.rows / tiles, longer = x.rows % tiles;
  for (; begin < end; begin += GROUP_PANELS) {
    const int count = end - begin < GROUP_PANELS ? end - begin : GROUP_PANELS;
    for (int k = 0; k < m.columns; k += chunk) {
      const int depth = m.columns - k < chunk ? m.columns - k : chunk;
      for (int p = 0, step = 1; p < count; p += step) {
        const bool pair = x.rows <= PAIR_ROWS && p + 2 <= count;
        step = pair ? 2 : 1;
        const char* w = m.panels + (begin + p) * size + k * row_bytes;
        float* c = scratch + size_t(p) * BLOCK_ROWS * PANEL;
        for (int tile = 0, row = 0; tile < tiles; tile++) {
          const int rows = base + (tile < longer);
          // The first tile runs ahead in its own panel, the second fetches the next one while this one is still near.
          const int prefetch = tile == 0 ? PREFETCH : tile == 1 ? int(depth * row_bytes) : 0;
          pick_kernel<kind>(rows, pair)(x.data + size_t(k / STEP) * x.stride + row * STEP, x.stride, w, size, depth,
                                        c + row * PANEL, BLOCK_ROWS, k == 0, prefetch);
          row += rows;
        }
        if (k + depth == m.columns)
          for (int s = 0; s < step; s++) finish(begin + p + s, c + size_t(s) * BLOCK_ROWS * PANEL);
      }
    }
  }
}
