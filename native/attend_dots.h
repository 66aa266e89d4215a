// bf16 attention with vectors: `dot_bf16` of pairs.  Included by attention.cpp.
//
// Invariant: a score is a chain of dots over pairs of elements, an element of the weighted sum one over pairs of
// positions, whatever the number of rows.
#pragma once

#include "attend_pairs.h"

namespace flyweight::FW_ISA {

class DotMath {
 public:
  static constexpr bool kWhole = false;

  explicit DotMath(const PairWork& work)
      : w_(work), tiles_((w_.rows.count() + kRowTile - 1) / kRowTile),
        tile_rows_((w_.rows.count() + tiles_ - 1) / tiles_) {
    pack_q();
  }

  int64_t tile_rows() const { return tile_rows_; }  // query rows of a register tile, as q is packed

  void scores(const PairTile& tile, const Span& s) {
    for (int64_t r = s.row / tile_rows_ * tile_rows_; r < s.end; r += tile_rows_)
      with_rows(rows_in(r), [&](auto n) { score<n.value>(w_.q + r * k_dim(), tile, w_.scores + r * kTile); });
  }

  // Every tile is multiplied with V at once.
  int place() const { return 0; }
  void finish(float*) {}

  // `starts`: the records hold no weighted V yet.
  void mix(const PairTile& tile, int64_t row, int64_t end, bool starts, float* records) {
    for (int64_t r = row, n; r < end; r += n) {
      n = end - r < kRowTile ? end - r : kRowTile;
      with_rows(n, [&](auto count) {
        int64_t column = 0;
        const int64_t width = padded(w_.a.kv.v_dim);
        for (; column + 16 * kWide <= width; column += 16 * kWide) sums<count.value, kWide>(tile, r, column, starts, records);
        for (; column < width; column += 16) sums<count.value, 1>(tile, r, column, starts, records);
      });
    }
  }

 private:
  int64_t k_dim() const { return w_.a.kv.k_dim; }
  int64_t rows_in(int64_t row) const {
    return w_.rows.count() - row < tile_rows_ ? w_.rows.count() - row : tile_rows_;
  }

  // q of each register tile of rows as [k_dim/2][rows in it][2].
  void pack_q() {
    alignas(64) uint16_t bits[kMaxHead + 16];
    alignas(64) float room[kMaxHead];
    for (int64_t begin = 0; begin < w_.rows.count(); begin += tile_rows_) {
      const int64_t n = rows_in(begin);
      for (int64_t r = 0; r < n; ++r) {
        const float* q = w_.query(begin + r, room);
        for (int64_t d = 0; d < k_dim(); d += 16)
          store_bf16(bits + d, load_tail(q + d, static_cast<int>(k_dim() - d < 16 ? k_dim() - d : 16)));
        for (int64_t d = 0; d < k_dim(); d += 2)
          std::memcpy(w_.q + begin * k_dim() + d * n + 2 * r, bits + d, 2 * sizeof(uint16_t));
      }
    }
  }

  template <int R>
  void score(const uint16_t* q, const PairTile& tile, float* to) const {
    for (int part = 0; part < kParts; part += kWide) {
      F32x16 sum[R][kWide];
      for (int r = 0; r < R; ++r)
        for (int w = 0; w < kWide; ++w) sum[r][w] = zero();
      for (int64_t d = 0; d < k_dim() / 2; ++d) {
        B8x64 k[kWide];
        for (int w = 0; w < kWide; ++w) k[w] = bload(tile.k[part + w] + d * 32);
        for (int w = 0; w < kWide; ++w) PairTile::touch(tile.next_k[part + w] + d * tile.next_vector);
        for (int r = 0; r < R; ++r) {
          const B8x64 x = set4(q + 2 * (d * R + r));
          for (int w = 0; w < kWide; ++w) sum[r][w] = dot_bf16(sum[r][w], x, k[w]);
        }
      }
      for (int r = 0; r < R; ++r)
        for (int w = 0; w < kWide; ++w) store(to + r * kTile + (part + w) * 16, sum[r][w]);
    }
  }

  template <int R, int W>
  void sums(const PairTile& tile, int64_t row, int64_t column, bool starts, float* records) const {
    float* to = records + row * w_.stride + 32 + column;
    const float* p = w_.weights + row * kWeights;
    F32x16 sum[R][W];
    for (int r = 0; r < R; ++r)
      for (int w = 0; w < W; ++w)
        sum[r][w] = starts ? zero() : mul(load(to + r * w_.stride + w * 16), set1(w_.factor[row + r]));
    for (int part = 0; part < kParts; ++part, p += 8) {
      if (!tile.used[part]) {
        const B8x64 none = bset1(0);
        for (int r = 0; r < R; ++r)
          for (int w = 0; w < W; ++w) sum[r][w] = dot_bf16(sum[r][w], none, none);
        continue;
      }
      const uint16_t* from = tile.v[part] + 2 * column;
      const uint16_t* ahead = tile.next_v[part] + column / 16 * tile.next_vector;
      for (int64_t pair = 0; pair < 8; ++pair, from += tile.v_stride, ahead += tile.next_row) {
        B8x64 v[W];
        for (int w = 0; w < W; ++w) v[w] = bload(from + w * 32);
        for (int w = 0; w < W; ++w) PairTile::touch(ahead + w * tile.next_vector);
        for (int r = 0; r < R; ++r) {
          const B8x64 x = set4(p + r * kWeights + pair);
          for (int w = 0; w < W; ++w) sum[r][w] = dot_bf16(sum[r][w], x, v[w]);
        }
      }
    }
    for (int r = 0; r < R; ++r)
      for (int w = 0; w < W; ++w) store(to + r * w_.stride + w * 16, sum[r][w]);
  }

  const PairWork& w_;
  int64_t tiles_, tile_rows_;
};

}  // namespace flyweight::FW_ISA
