// Weights as a checkpoint has them, [rows, columns] in float32, become panels (gemm.h).
#pragma once
#include "gemm.h"

static inline uint16_t narrow(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if ((bits & 0x7fffffff) > 0x7f800000) return uint16_t(bits >> 16 | 0x40);
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);  // to nearest, ties to even
}

// LANES rows from `row` on (those that exist) become a vector of each line of a panel.
template <class Element, class Convert>
static inline void pack_strip(const float* from, int rows, int columns, int row, Element* to, int step, Convert&& convert) {
  const int low = row < 0 ? -row : 0, high = rows - row < LANES ? rows - row : LANES;
  from += int64_t(row) * columns;
  auto fill = [&](int low, int high) {
    for (int k = 0; k < columns; k++)
      for (int i = low; i < high; i++) to[size_t(k) * PANEL + i * step] = convert(from[int64_t(i) * columns + k]);
  };
  if (low == 0 && high == LANES)
    fill(0, LANES);
  else
    fill(low, high);
}

// Put rows [rows, columns] of a weight into panels. Row r goes to column `first` + r, or, with `paired`, to the
// `first`-th half of panels that hold LANES columns of two weights each.
static inline void pack(const float* from, int32_t rows, int32_t columns, int32_t first, int32_t paired, int32_t kind,
                 void* panels, int32_t threads) {
  const Weights weights = Weights(kind);
  const size_t size = panel_bytes(weights, columns);
  // A strip is one vector of columns: half a panel.
  const int begin = paired ? 0 : first / LANES, end = ((paired ? 0 : first) + rows + LANES - 1) / LANES;
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int strip = begin; strip < end; strip++) {
    char* panel = static_cast<char*>(panels) + size_t(paired ? strip : strip / 2) * size;
    const int half = paired ? first : strip % 2, row = strip * LANES - (paired ? 0 : first);
    if (weights == Weights::f32)
      pack_strip(from, rows, columns, row, reinterpret_cast<float*>(panel) + half * LANES, 1, [](float x) { return x; });
    else
      pack_strip(from, rows, columns, row, reinterpret_cast<uint16_t*>(panel) + half, 2, narrow);
  }
}
