// A step of a Llama network as one call: any mix of decodes and prompt chunks over the paged cache.
#pragma once
#include <omp.h>

#include <algorithm>
#include <memory>
#include <type_traits>
#include <vector>

#include "attention.h"
#include "gemm.h"
#include "greedy.h"
#include "rows.h"
#include "threads.h"

struct Layer {
  const float* attention_norm;
  Matrix qkv;
  Matrix output;
  const float* mlp_norm;
  Matrix gate_up;  // each panel holds LANES columns of gate, then the same columns of up
  Matrix down;
  Cache cache;
};

// Mirrors `Shape` in library.py.
struct Shape {
  int32_t vocab, hidden, intermediate, layers, heads, kv_heads, head_dim, block_size;
  int32_t max_position;
  Weights weights;
  Kept kept;
  float eps;
};

// Mirrors `Step` in library.py.
struct Step {
  int32_t tokens, seqs, logits, threads;
  const int32_t* token_ids;      // [tokens]
  const int32_t* query_start;    // [seqs + 1] first new token of each sequence
  const int32_t* positions;      // [seqs] position of the first new token
  const int32_t* block_start;    // [seqs + 1] where a sequence's blocks start in `blocks`
  const int32_t* blocks;
  const int32_t* num_logits;     // [seqs] how many of the last new tokens want logits
  float* out;                    // [logits, vocab]; or null, and these two, [logits] each:
  int32_t* best_tokens;
  float* best_logits;
};

// Neighbouring new tokens of one sequence whose attention is computed together.
struct Tile {
  int32_t seq, row, tokens, position, out_row;
};

constexpr int NO_MEMORY = 6;

// What one thread keeps between units.
struct Worker {
  AlignedFloats block, scratch, attention;
  Greedy greedy;
  uint32_t phase = 0;
  int held = -1;  // the block of rows that `block` holds in this phase
};

class Llama {
 public:
  Llama(const Shape& shape, const void* const* weights, const float* cos, const float* sin)
      : shape_(shape), cos_(cos), sin_(sin) {
    const int q = shape.heads * shape.head_dim, kv = shape.kv_heads * shape.head_dim;
    qkv_width_ = q + 2 * kv;
    auto norm = [&] { return static_cast<const float*>(*weights++); };
    auto matrix = [&](int rows, int columns) {
      Matrix m{static_cast<const char*>(weights[0]), static_cast<const float*>(weights[1]), rows, columns};
      weights += 2;
      return m;
    };
    for (int i = 0; i < shape.layers; i++) {
      Layer layer{};
      layer.attention_norm = norm();
      layer.qkv = matrix(qkv_width_, shape.hidden);
      layer.output = matrix(shape.hidden, q);
      layer.mlp_norm = norm();
      // Gate and up are padded to whole vectors each, so that every panel has LANES columns of both.
      layer.gate_up = matrix(2 * round_up(shape.intermediate, LANES), shape.hidden);
      layer.down = matrix(shape.hidden, shape.intermediate);
      layers_.push_back(layer);
    }
    final_norm_ = norm();
    head_ = matrix(shape.vocab, shape.hidden);
    embedding_ = weights[0];
  }

  void set_cache(const Cache* of_layers, int blocks) {
    num_blocks_ = blocks;
    for (size_t i = 0; i < layers_.size(); i++) layers_[i].cache = of_layers[i];
  }

  // 0, or which input is out of range, or NO_MEMORY; nothing is computed then.
  int forward(const Step& step) {
    if (const int wrong = check(step)) return wrong;
    const int threads = step.threads;
    try {
      plan(step);
    } catch (const std::bad_alloc&) {
      return NO_MEMORY;
    }
    const uint32_t first = phases_.now();
#pragma omp parallel num_threads(threads)
    {
      Worker& worker = *workers_[omp_get_thread_num()];
      worker.phase = first;
      if (!step.out) worker.greedy.reset(step.logits);
      if (shape_.weights == Weights::f32)
        work<Weights::f32>(step, worker);
      else
        work<Weights::bf16>(step, worker);
    }
    if (!step.out)
      for (int row = 0; row < step.logits; row++) {
        step.best_tokens[row] = 0;
        step.best_logits[row] = -INFINITY;
        for (int i = 0; i < threads; i++) workers_[i]->greedy.settle(row, step.best_tokens[row], step.best_logits[row]);
      }
    return 0;
  }

 private:
  static bool outside(int x, int end) { return x < 0 || x >= end; }

  int check(const Step& s) const {
    for (int i = 0; i < s.tokens; i++)
      if (outside(s.token_ids[i], shape_.vocab)) return 1;
    for (int i = 0; i < s.seqs; i++) {
      const int n = s.query_start[i + 1] - s.query_start[i], end = s.positions[i] + n;
      if (n < 1 || s.positions[i] < 0 || end > shape_.max_position) return 2;
      if (outside(s.num_logits[i], n + 1)) return 3;
      if (int64_t(s.block_start[i + 1] - s.block_start[i]) * shape_.block_size < end) return 4;
    }
    for (int i = 0; i < s.block_start[s.seqs]; i++)
      if (outside(s.blocks[i], num_blocks_)) return 5;
    return 0;
  }

  void plan(const Step& s) {
    const int group = shape_.heads / shape_.kv_heads, most = QUERY_ROWS / group > 0 ? QUERY_ROWS / group : 1;
    tiles_.clear();
    last_tiles_.clear();
    logit_rows_.clear();
    single_ = true;
    for (int i = 0; i < s.seqs; i++) {
      const int begin = s.query_start[i], end = s.query_start[i + 1], position = s.positions[i];
      single_ = single_ && end - begin == 1;
      for (int row = begin; row < end; row += most)
        tiles_.push_back({i, row, end - row < most ? end - row : most, position + row - begin, row});
      for (int row = end - s.num_logits[i]; row < end; row += most)
        last_tiles_.push_back({i, row, end - row < most ? end - row : most, position + row - begin,
                               int(logit_rows_.size()) + row - (end - s.num_logits[i])});
      for (int row = end - s.num_logits[i]; row < end; row++) logit_rows_.push_back(row);
    }
    const int rows = s.tokens;
    x_stride_ = round_up(shape_.hidden, PANEL);
    qkv_stride_ = round_up(qkv_width_, PANEL);
    attended_stride_ = round_up(shape_.heads * shape_.head_dim, PANEL);
    mlp_stride_ = round_up(shape_.intermediate, LANES);
    x_.ensure(size_t(rows) * x_stride_);
    last_x_.ensure(logit_rows_.size() * x_stride_);
    qkv_.ensure(size_t(rows) * qkv_stride_);
    attended_.ensure(size_t(rows) * attended_stride_);
    mlp_.ensure(size_t(rows) * mlp_stride_);
    while (int(workers_.size()) < s.threads) workers_.push_back(std::make_unique<Worker>());
    const int longest = std::max({shape_.hidden, shape_.heads * shape_.head_dim, shape_.intermediate});
    for (auto& worker : workers_) {
      worker->block.ensure(size_t(round_up(longest, STEP)) * (BLOCK_ROWS + 1));
      worker->scratch.ensure(SCRATCH_FLOATS);
      worker->attention.ensure(AttentionScratch::floats(std::max(group, QUERY_ROWS), shape_.head_dim));
    }
  }

  template <Weights kind>
  void work(const Step& s, Worker& w) {
    float *x = x_.get(), *qkv = qkv_.get(), *attended = attended_.get(), *mlp = mlp_.get();
    const int all = s.tokens, wanted = int(logit_rows_.size());
    phase(s, w, all, [&](int begin, int end) {
      for (int i = begin; i < end; i++) embed<kind>(s.token_ids[i], x + size_t(i) * x_stride_);
    });
    for (size_t index = 0; index < layers_.size(); index++) {
      const Layer& layer = layers_[index];
      const bool last = index + 1 == layers_.size();
      gemm<kind>(s, w, all, layer.qkv, normed(x, layer.attention_norm),
                 [&](int row, int panel, Floats low, Floats high) {
                   float* to = qkv + size_t(row) * qkv_stride_ + panel * PANEL;
                   store(to, low);
                   store(to + LANES, high);
                 });
      // Behind the last layer's keys and values only the rows that somebody asks for matter.
      const bool gather = last && wanted != all;
      // Where each sequence has one new token, whoever attends to it has placed all that it needs.
      const bool apart = !single_ || gather;
      if (apart)
        phase(s, w, all * shape_.kv_heads, [&](int begin, int end) {
          int seq = 0;
          for (int unit = begin; unit < end; unit++) {
            const int row = unit / shape_.kv_heads;
            while (row >= s.query_start[seq + 1]) seq++;
            place(s, layer, seq, row, s.positions[seq] + row - s.query_start[seq], unit % shape_.kv_heads);
          }
        });
      if (last && wanted == 0) return;
      const std::vector<Tile>& tiles = last ? last_tiles_ : tiles_;
      float* residual = gather ? last_x_.get() : x;
      phase(s, w, int(tiles.size()) * shape_.kv_heads, [&](int begin, int end) {
        for (int unit = begin; unit < end; unit++) {
          const Tile& tile = tiles[unit / shape_.kv_heads];
          const int head = unit % shape_.kv_heads;
          if (!apart) place(s, layer, tile.seq, tile.row, tile.position, head);
          attend_tile(s, layer, tile, head, attended, w);
          if (gather && head == 0)
            for (int i = 0; i < tile.tokens; i++)
              std::memcpy(residual + size_t(tile.out_row + i) * x_stride_, x + size_t(tile.row + i) * x_stride_,
                          size_t(x_stride_) * 4);
        }
      });
      const int rows = last ? wanted : all;
      auto add = [&](int row, int panel, Floats low, Floats high) {
        float* to = residual + size_t(row) * x_stride_ + panel * PANEL;
        store(to, load(to) + low);
        store(to + LANES, load(to + LANES) + high);
      };
      gemm<kind>(s, w, rows, layer.output, plain(attended, attended_stride_), add);
      gemm<kind>(s, w, rows, layer.gate_up, normed(residual, layer.mlp_norm),
                 [&](int row, int panel, Floats gate, Floats up) {
                   store(mlp + size_t(row) * mlp_stride_ + panel * LANES, silu(gate) * up);
                 });
      gemm<kind>(s, w, rows, layer.down, plain(mlp, mlp_stride_), add);
      if (last)
        gemm<kind>(s, w, rows, head_, normed(residual, final_norm_),
                   [&](int row, int panel, Floats low, Floats high) { deliver(s, w, row, panel * PANEL, low, high); });
    }
  }

  // A panel of one row of logits: written, or looked at for the likeliest token.
  void deliver(const Step& s, Worker& w, int row, int column, Floats low, Floats high) const {
    float* to = s.out ? s.out + size_t(row) * shape_.vocab + column : nullptr;
    const int left = shape_.vocab - column;
    if (left < PANEL) {
      float both[PANEL];
      store(both, low);
      store(both + LANES, high);
      if (to)
        std::memcpy(to, both, size_t(left) * 4);
      else
        w.greedy.offer(row, column, both, left);
    } else if (to) {
      store(to, low);
      store(to + LANES, high);
    } else {
      w.greedy.offer(row, column, low);
      w.greedy.offer(row, column + LANES, high);
    }
  }

  // A phase that every thread of the step meets with the same number of units.
  template <class Body>
  void phase(const Step& s, Worker& w, int units, Body&& body) {
    if (units == 0) return;
    w.held = -1;
    phases_.run(w.phase++, uint32_t(units), uint32_t(s.threads), body);
  }

  // How a row of x gets into a block: normalised, or as it is.
  auto normed(const float* x, const float* weight) const {
    return [=, this](int row, float* to, int stride) {
      normalise(x + size_t(row) * x_stride_, weight, shape_.hidden, shape_.eps, to, stride);
    };
  }
  static auto plain(const float* x, int x_stride) {
    return [=](int row, int columns, float* to, int stride) { copy_row(x + size_t(row) * x_stride, columns, to, stride); };
  }

  // A phase of y = x W^T + b; `finish` is given each row's two vectors of a panel.
  template <Weights kind, class Prepare, class Finish>
  void gemm(const Step& s, Worker& w, int rows, const Matrix& m, Prepare&& prepare, Finish&& finish) {
    const int panels = m.num_panels(), blocks = (rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
    phase(s, w, blocks * panels, [&](int begin, int end) {
      while (begin < end) {
        const int block = begin / panels, stop = end < (block + 1) * panels ? end : (block + 1) * panels;
        const int first = int(int64_t(rows) * block / blocks), count = int(int64_t(rows) * (block + 1) / blocks) - first;
        const Block x{w.block.get(), count, (count | 1) * STEP};
        if (w.held != block) {
          for (int i = 0; i < count; i++) {
            if constexpr (std::is_invocable_v<Prepare, int, float*, int>)
              prepare(first + i, x.data + i * STEP, x.stride);
            else
              prepare(first + i, m.columns, x.data + i * STEP, x.stride);
          }
#if defined(__AVX512BF16__)
          if constexpr (kind == Weights::bf16) narrow_rows(x, m.columns);
#endif
          w.held = block;
        }
        multiply<kind>(x, m, begin - block * panels, stop - block * panels, w.scratch.get(),
                       [&](int panel, const float* sums) {
                         Floats low{}, high{};
                         if (m.bias) {
                           low = load(m.bias + panel * PANEL);
                           high = load(m.bias + panel * PANEL + LANES);
                         }
                         for (int i = 0; i < count; i++)
                           finish(first + i, panel, load(sums + i * PANEL) + low, load(sums + i * PANEL + LANES) + high);
                       });
        begin = stop;
      }
    });
  }

  // Row `token` of the embedding; of the packed output matrix where that is the same.
  template <Weights kind>
  void embed(int token, float* out) const {
    const int hidden = shape_.hidden;
    std::memset(out + hidden, 0, size_t(x_stride_ - hidden) * 4);
    if (embedding_) {
      if constexpr (kind == Weights::f32) {
        std::memcpy(out, static_cast<const float*>(embedding_) + size_t(token) * hidden, size_t(hidden) * 4);
      } else {
        const uint16_t* row = static_cast<const uint16_t*>(embedding_) + size_t(token) * hidden;
        for (int k = 0; k < hidden; k++) out[k] = widen(row[k]);
      }
      return;
    }
    const char* panel = head_.panels + size_t(token / PANEL) * panel_bytes(kind, hidden);
    const int column = token % PANEL;
    if constexpr (kind == Weights::f32) {
      const float* at = reinterpret_cast<const float*>(panel) + column;
      for (int k = 0; k < hidden; k++) out[k] = at[size_t(k) * PANEL];
    } else {
      const uint16_t* at = reinterpret_cast<const uint16_t*>(panel) + column % LANES * 2 + column / LANES;
      for (int k = 0; k < hidden; k++) out[k] = widen(at[size_t(k) * PANEL]);
    }
  }

  // Rotate the query heads of key-value head `head` and its key; put key and value into the cache.
  void place(const Step& s, const Layer& layer, int seq, int row, int position, int head) {
    const int dim = shape_.head_dim, group = shape_.heads / shape_.kv_heads, size = shape_.block_size;
    const float *cos = cos_ + size_t(position) * (dim / 2), *sin = sin_ + size_t(position) * (dim / 2);
    float* x = qkv_.get() + size_t(row) * qkv_stride_;
    for (int g = 0; g < group; g++) rotate(x + (head * group + g) * dim, dim, cos, sin);
    float* key = x + (shape_.heads + head) * dim;
    rotate(key, dim, cos, sin);
    const size_t block = s.blocks[s.block_start[seq] + position / size], inside = position % size;
    const size_t nth = block * shape_.kv_heads + head, base = nth * dim * size, at = nth * size + inside;
    const float* value = x + (shape_.heads + shape_.kv_heads + head) * dim;
    const Cache& cache = layer.cache;
    with_kept(shape_.kept, [&](auto kept) {
      using N = Number<kept()>;
      keep<kept()>(key, dim, static_cast<N*>(cache.keys) + base + inside, size, cache.key_scales + at);
      keep<kept()>(value, dim, static_cast<N*>(cache.values) + base + inside * dim, 1, cache.value_scales + at);
    });
  }

  void attend_tile(const Step& s, const Layer& layer, const Tile& tile, int head, float* out, Worker& w) {
    const int group = shape_.heads / shape_.kv_heads, dim = shape_.head_dim;
    const CacheShape shape{shape_.kv_heads, dim, shape_.block_size};
    float* memory = w.attention.get();
    const float* query = qkv_.get() + size_t(tile.row) * qkv_stride_ + size_t(head) * group * dim;
    float* to = out + size_t(tile.out_row) * attended_stride_ + size_t(head) * group * dim;
    const int32_t* blocks = s.blocks + s.block_start[tile.seq];
    auto run = [&](auto simd) {
      with_kept(shape_.kept, [&](auto kept) {
        attend<decltype(simd), kept()>(shape, layer.cache, blocks, head, group, tile.position, tile.tokens, query,
                                       qkv_stride_, to, attended_stride_, memory);
      });
    };
    if (dim % LANES == 0 && shape_.block_size % LANES == 0)
      run(Wide{});
    else
      run(Simd<8>{});
  }

  const Shape shape_;
  const float *cos_, *sin_;
  std::vector<Layer> layers_;
  const float* final_norm_;
  Matrix head_;
  const void* embedding_;
  int num_blocks_ = 0;
  int qkv_width_, x_stride_ = 0, qkv_stride_ = 0, attended_stride_ = 0, mlp_stride_ = 0;
  AlignedFloats x_, last_x_, qkv_, attended_, mlp_;
  std::vector<Tile> tiles_, last_tiles_;
  std::vector<int> logit_rows_;
  bool single_ = false;
  Phases phases_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

