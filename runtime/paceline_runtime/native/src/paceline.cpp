// The C interface (library.py). Pointers are the caller's and outlive the call, those given to `create` and `set_cache`
// outlive the model.
#include "llama.h"
#include "pack.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int32_t paceline_lanes() { return LANES; }

EXPORT void paceline_pack(const float* from, int32_t rows, int32_t columns, int32_t first, int32_t paired, int32_t kind,
                          void* panels, int32_t threads) {
  pack(from, rows, columns, first, paired, kind, panels, threads);
}

// A checksum as fast as memory: eight sums of multiplied words, folded. For damage, not for malice.
EXPORT uint64_t paceline_checksum(const uint64_t* words, size_t count) {
  uint64_t state[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  for (size_t i = 0; i < count; i++) {
    uint64_t& s = state[i % 8];
    s = (s ^ words[i]) * 0x9e3779b97f4a7c15u;
    s ^= s >> 32;
  }
  uint64_t total = count;
  for (uint64_t s : state) total = (total ^ s) * 0x9e3779b97f4a7c15u;
  return total ^ total >> 32;
}

EXPORT void* paceline_create(const Shape* shape, const void* const* weights, const float* cos, const float* sin) {
  return new Llama(*shape, weights, cos, sin);
}

EXPORT void paceline_set_cache(void* model, const Cache* of_layers, int32_t blocks) {
  static_cast<Llama*>(model)->set_cache(of_layers, blocks);
}

EXPORT int32_t paceline_forward(void* model, const Step* step) { return static_cast<Llama*>(model)->forward(*step); }

EXPORT void paceline_destroy(void* model) { delete static_cast<Llama*>(model); }
