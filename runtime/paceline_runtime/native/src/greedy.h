// The likeliest token of each row, found while its logits are still in registers: for a batch that only wants these,
// the logits are never written.
#pragma once
#include <cmath>
#include <vector>

#include "simd.h"

// What one thread has seen; columns come in ascending order.
class Greedy {
 public:
  void reset(int rows) { rows_.assign(size_t(rows), Row{splat(-INFINITY), Ints{}, Ints{}, 0.f, 0, false}); }

  void offer(int row, int column, Floats values) {
    Row& r = rows_[row];
    const Ints better = values > r.values;
    Ints columns{};
    columns += column;
    r.values = better ? values : r.values;
    r.columns = better ? columns : r.columns;
    r.broken |= values != values;
  }

  // The columns that fill no vector.
  void offer(int row, int column, const float* values, int count) {
    Row& r = rows_[row];
    for (int i = 0; i < count; i++) {
      r.rest_broken |= values[i] != values[i];
      if (!r.rest_column || values[i] > r.rest) {
        r.rest = values[i];
        r.rest_column = column + i + 1;
      }
    }
  }

  // Take this thread's finding into (token, logit); of equals the lowest token counts. NaN if any logit is.
  void settle(int row, int32_t& token, float& logit) const {
    const Row& r = rows_[row];
    auto take = [&](float value, int column) {
      if (value > logit || (value == logit && column < token)) {
        logit = value;
        token = column;
      }
    };
    bool broken = r.rest_broken;
    for (int i = 0; i < LANES; i++) {
      broken |= r.broken[i] != 0;
      if (r.values[i] > -INFINITY) take(r.values[i], r.columns[i] + i);
    }
    if (r.rest_column) take(r.rest, r.rest_column - 1);
    if (broken) logit = NAN;
  }

 private:
  struct Row {
    Floats values;
    Ints columns;  // of the vector's first lane
    Ints broken;
    float rest;
    int32_t rest_column;  // from 1; 0 is none
    bool rest_broken;
  };
  std::vector<Row> rows_;
};
