// A product that opens a few tiles at a time, one stretch of K after the other, and passes all panels of a chunk over them.
//
// Invariant: between stretches a sum waits in `out`, which changes no bit.  How tiles are opened and multiplied is the
// Path's: `kK` (K of a stretch), `Tile` (an opened one), `open(weight kind, tile, k, count, to)`, `panel(job, token, k,
// size)` (where the activations of a stretch begin), and `multiply(size)`, a function (opened, tiles, panel, count, sums,
// first).
#pragma once

#include "gemm_sums.h"

namespace flyweight::FW_ISA {

template <class Path>
class StretchChunk {
 public:
  StretchChunk(const LinearJob& job, Path path)
      : job_(job), path_(path), bytes_(tile_bytes(job.kind, job.k)), panels_(panel_count(job.tokens, kTokens)) {}

  void run(Range tiles, Range panels) {
    for (int64_t k = 0; k < job_.k; k += Path::kK) {
      const int64_t count = k + Path::kK < job_.k ? Path::kK : job_.k - k;
      const bool last = k + count == job_.k;
      for (int64_t i = tiles.begin; i < tiles.end; ++i) {
        prefetch(last ? job_.weight + (tiles.end - tiles.begin + i) * bytes_ : place(i, k + count), place(i, count) - place(i, 0));
        path_.open(job_.kind, job_.weight + i * bytes_, k, count, opened_[i - tiles.begin]);
      }
      for (int64_t p = panels.begin; p < panels.end; ++p) multiply(tiles, p, k, count);
    }
  }

 private:
  const uint8_t* place(int64_t tile, int64_t k) const { return job_.weight + tile * bytes_ + k * bytes_ / job_.k; }

  void multiply(Range tiles, int64_t p, int64_t k, int64_t count) {
    const int64_t token = panel_start(job_.tokens, panels_, p), size = panel_start(job_.tokens, panels_, p + 1) - token;
    if (k > 0) sums_.take(job_, tiles, token, size);
    path_.multiply(size)(opened_, tiles.end - tiles.begin, path_.panel(job_, token, k, size), count, sums_.of(0), k == 0);
    sums_.give(job_, tiles, token, size, k + count == job_.k);
  }

  const LinearJob& job_;
  Path path_;
  int64_t bytes_, panels_;
  alignas(64) typename Path::Tile opened_[kSumTiles];
  Sums sums_;
};

template <class Path>
void multiply_stretches(const LinearJob& job, Range tiles, Range panels, Path path) {
  StretchChunk<Path> chunk(job, path);
  for (int64_t i = tiles.begin; i < tiles.end; i += kSumTiles)
    chunk.run({i, i + kSumTiles < tiles.end ? i + kSumTiles : tiles.end}, panels);
}

}  // namespace flyweight::FW_ISA
