// bf16 attention with AMX: 16 rows x 32 elements x 16 columns an instruction.  Included by attention.cpp.
//
// Invariant: a score takes 32 elements an instruction, in order; the weighted V 32 positions, in order.  Rows go 16 at a
// time, or fewer where an item has no more, and those that a tile is not for are left alone: a row of a product depends
// on its own row only.
#pragma once

#include "amx.h"
#include "attend_pairs.h"

namespace flyweight::FW_ISA {

class AmxMath {
 public:
  static constexpr bool kWhole = true;
  static bool fits(const KVView& kv) { return kv.k_dim % 32 == 0 && kv.v_dim % 16 == 0; }

  explicit AmxMath(const PairWork& work) : w_(work), end_(padded(w_.rows.count())), few_(w_.rows.count() < kTileRows) {
    TileShapes shapes;
    for (int tile = 0; tile < 8; ++tile) shapes.set(tile, few_ && tile < 5 ? w_.rows.count() : kTileRows, 64);
    shapes.load();
    pack_q();
  }
  ~AmxMath() { TileShapes::release(); }
  AmxMath(const AmxMath&) = delete;
  AmxMath& operator=(const AmxMath&) = delete;

  void scores(const PairTile& tile, const Span& s) {
    if (few_) return score_few(tile);
    const int64_t begin = s.row / 16 * 16;
    for (int64_t r = begin; r < s.end; r += 32) {
      if (r + 16 < s.end) {
        score<2>(tile, s, r, r == begin);
      } else {
        score<1>(tile, s, r, r == begin);
      }
    }
  }

  // `starts`: the records hold no weighted V yet.
  void mix(const PairTile& tile, int64_t row, int64_t end, bool starts, float* records) {
    if (!starts)
      for (int64_t r = row; r < end; ++r) rescale(r, records);
    if (few_ && end - row == w_.rows.count()) return mix_few(tile, starts, records);
    const int64_t stop = end == w_.rows.count() ? end_ : end;  // rows of padding may be written
    bool first = true;
    for (int64_t r = row / 16 * 16; r < end; first = false) {
      if (r >= row && r + 32 <= stop) {
        mix_rows16<2>(tile, r, records + r * w_.stride, {first, starts});
        r += 32;
      } else if (r >= row && r + 16 <= stop) {
        mix_rows16<1>(tile, r, records + r * w_.stride, {first, starts});
        r += 16;
      } else {
        mix_some(tile, r, row, end, starts, records);
        r += 16;
      }
    }
  }

 private:
  int64_t k_dim() const { return w_.a.kv.k_dim; }

  // [rows][k_dim]; rows of padding stay unchanged, what comes of them is not read.
  void pack_q() {
    alignas(64) float room[kMaxHead];
    for (int64_t r = 0; r < w_.rows.count(); ++r) {
      const float* q = w_.query(r, room);
      for (int64_t d = 0; d < k_dim(); d += 32) bstore(w_.q + r * k_dim() + d, pack_bf16(load(q + d), load(q + d + 16)));
    }
  }

  // 16 M rows from r on; `first`: the next tile is to be touched.  Parts that none of these rows sees are left as they
  // are, the softmax does not prefetch them.  Registers: sums 0 to 3, rows 4 and 5, positions 6, 7.
  template <int M>
  void score(const PairTile& tile, const Span& s, int64_t r, bool first) const {
    const uint16_t* q = w_.q + r * k_dim();
    float* to = w_.scores + r * kTile;
    const int64_t below = r < s.row ? s.row : r, last = r + 16 * M < s.end ? r + 16 * M - 1 : s.end - 1;
    const int64_t least = w_.rows.from(below, s.at), most = w_.rows.to(last, s.at);
    for (int part = 0; part < kParts; part += 2, to += 32) {
      const bool ask = first && tile.ahead;
      if (16 * part >= most || 16 * part + 32 <= least) {
        if (ask) ask_k(tile, part);
        continue;
      }
      tile_zero<0>();
      tile_zero<1>();
      if constexpr (M > 1) {
        tile_zero<2>();
        tile_zero<3>();
      }
      for (int64_t d = 0; d < k_dim(); d += 32) {
        tile_load<6>(tile.k[part] + d * 16, 64);
        tile_load<7>(tile.k[part + 1] + d * 16, 64);
        tile_load<4>(q + d, 2 * k_dim());
        if (ask) {
          ahead<16>(tile.next_k[part] + d * 16, 32);
          ahead<16>(tile.next_k[part + 1] + d * 16, 32);
        }
        tile_dot_bf16<0, 4, 6>();
        tile_dot_bf16<1, 4, 7>();
        if constexpr (M > 1) {
          tile_load<5>(q + 16 * k_dim() + d, 2 * k_dim());
          tile_dot_bf16<2, 5, 6>();
          tile_dot_bf16<3, 5, 7>();
        }
      }
      tile_store<0>(to, kRowBytes);
      tile_store<1>(to + 16, kRowBytes);
      if constexpr (M > 1) {
        tile_store<2>(to + 16 * kTile, kRowBytes);
        tile_store<3>(to + 16 * kTile + 16, kRowBytes);
      }
    }
  }

  // Of fewer than 16 rows.  Registers: sums 0 to 3, rows 4, positions 5 to 7.
  void score_few(const PairTile& tile) const {
    each<4>([](auto i) FW_LAMBDA { tile_zero<i.value>(); });
    for (int64_t d = 0; d < k_dim(); d += 32) {
      tile_load<4>(w_.q + d, 2 * k_dim());
      each<4>([&](auto i) FW_LAMBDA {
        constexpr int K = 5 + i.value % 3;
        if (!used(tile, i.value)) return;
        tile_load<K>(tile.k[i.value] + d * 16, 64);
        tile_dot_bf16<i.value, 4, K>();
        if (tile.ahead) ahead<16>(tile.next_k[i.value] + d * 16, 32);
      });
    }
    each<4>([&](auto i) FW_LAMBDA { tile_store<i.value>(w_.scores + 16 * i.value, kRowBytes); });
  }

  void mix_few(const PairTile& tile, bool starts, float* records) const {
    int64_t column = 0;
    for (; column + 64 <= w_.a.kv.v_dim; column += 64) mix_few_columns<4>(tile, starts, records + 32 + column, column);
    for (; column < w_.a.kv.v_dim; column += 16) mix_few_columns<1>(tile, starts, records + 32 + column, column);
  }

  template <int N>
  void mix_few_columns(const PairTile& tile, bool starts, float* to, int64_t column) const {
    const int64_t next = 4 * w_.stride, v_next = 2 * tile.v_stride;
    each<N>([&](auto i) FW_LAMBDA { load_sum<i.value>(starts, to + 16 * i.value, next); });
    for (int half = 0; half < 2; ++half) {
      const uint16_t* v = tile.v[2 * half] + 2 * column;
      tile_load<4>(w_.scores + 16 * half, kRowBytes);
      each<N>([&](auto i) FW_LAMBDA {
        constexpr int V = 5 + i.value % 3;
        load_v<V>(tile, half, v + 32 * i.value, v_next);
        tile_dot_bf16<i.value, 4, V>();
      });
      if (tile.ahead) ahead_v<16 * N>(tile, 2 * column + half * 16 * N);
    }
    each<N>([&](auto i) FW_LAMBDA { tile_store<i.value>(to + 16 * i.value, next); });
  }

  // Whether a query sees some of the two parts from `part` on.
  FW_INLINE static bool used(const PairTile& tile, int part) {
    return tile.used[part / 2 * 2] || tile.used[part / 2 * 2 + 1];
  }

  template <int Tile>
  FW_INLINE static void load_v(const PairTile& tile, int half, const uint16_t* from, int64_t stride) {
    if (used(tile, 2 * half)) {
      tile_load<Tile>(from, stride);
    } else {
      tile_zero<Tile>();
    }
  }

  template <int Tile>
  FW_INLINE static void load_sum(bool starts, const float* from, int64_t stride) {
    if (starts) {
      tile_zero<Tile>();
    } else {
      tile_load<Tile>(from, stride);
    }
  }

  void rescale(int64_t r, float* records) const {
    if (w_.factor[r] == 1.0f) return;
    const F32x16 factor = set1(w_.factor[r]);
    float* to = records + r * w_.stride + 32;
    for (int64_t i = 0; i < w_.a.kv.v_dim; i += 16) store(to + i, mul(load(to + i), factor));
  }

  struct Turn {
    bool first, starts;  // the next tile is to be touched; the records hold no weighted V yet
  };

  // Weighted V of 16 M rows from r on, in records at `to`.
  template <int M>
  void mix_rows16(const PairTile& tile, int64_t r, float* to, Turn turn) const {
    int64_t column = 0;
    for (; column + 32 <= w_.a.kv.v_dim; column += 32) mix_columns<M, 2>(tile, r, to + 32 + column, column, turn);
    if (column < w_.a.kv.v_dim) mix_columns<M, 1>(tile, r, to + 32 + column, column, turn);
  }

  // 16 N columns of it.  Registers: sums 0 to 3, weights 4 and 5, V 6 and 7.
  template <int M, int N>
  void mix_columns(const PairTile& tile, int64_t r, float* to, int64_t column, Turn turn) const {
    const int64_t next = 4 * w_.stride, down = 16 * w_.stride, v_next = 2 * tile.v_stride;
    const float* p = w_.scores + r * kTile;
    load_sum<0>(turn.starts, to, next);
    if constexpr (N > 1) load_sum<1>(turn.starts, to + 16, next);
    if constexpr (M > 1) load_sum<2>(turn.starts, to + down, next);
    if constexpr (M > 1 && N > 1) load_sum<3>(turn.starts, to + down + 16, next);
    for (int half = 0; half < 2; ++half, p += 16) {
      const uint16_t* v = tile.v[2 * half] + 2 * column;
      tile_load<4>(p, kRowBytes);
      load_v<6>(tile, half, v, v_next);
      tile_dot_bf16<0, 4, 6>();
      if constexpr (N > 1) {
        load_v<7>(tile, half, v + 32, v_next);
        tile_dot_bf16<1, 4, 7>();
      }
      if constexpr (M > 1) {
        tile_load<5>(p + 16 * kTile, kRowBytes);
        tile_dot_bf16<2, 5, 6>();
        if constexpr (N > 1) tile_dot_bf16<3, 5, 7>();
      }
      if (turn.first && tile.ahead) ahead_v<16 * N>(tile, 2 * column + half * 16 * N);
    }
    tile_store<0>(to, next);
    if constexpr (N > 1) tile_store<1>(to + 16, next);
    if constexpr (M > 1) tile_store<2>(to + down, next);
    if constexpr (M > 1 && N > 1) tile_store<3>(to + down + 16, next);
  }

  // Of the 16 rows from r on only [row, end).
  void mix_some(const PairTile& tile, int64_t r, int64_t row, int64_t end, bool starts, float* records) const {
    alignas(64) float some[16 * (32 + kMaxHead)];
    const int64_t first = r < row ? row : r, last = r + 16 < end ? r + 16 : end, floats = w_.stride - 32;
    const int64_t rows = few_ ? w_.rows.count() : kTileRows;
    for (int64_t i = 0; i < rows && !starts; ++i)
      for (int64_t d = 0; d < floats; d += 16) {
        const int64_t from = i + r < first ? first : i + r < last ? i + r : last - 1;
        store(some + i * w_.stride + 32 + d, load(records + from * w_.stride + 32 + d));
      }
    mix_rows16<1>(tile, r, some, {false, starts});
    for (int64_t i = first; i < last; ++i)
      for (int64_t d = 0; d < floats; d += 16)
        store(records + i * w_.stride + 32 + d, load(some + (i - r) * w_.stride + 32 + d));
  }

  template <int Rows>
  FW_INLINE static void ahead(const uint16_t* p, int64_t stride) {
    for (int i = 0; i < Rows; ++i) PairTile::touch(p + i * stride);
  }

  void ask_k(const PairTile& tile, int part) const {
    for (int64_t d = 0; d < k_dim(); d += 32) {
      ahead<16>(tile.next_k[part] + d * 16, 32);
      ahead<16>(tile.next_k[part + 1] + d * 16, 32);
    }
  }

  // Lines of the next V in the order of memory, not of columns: that is what streams well.
  template <int Lines>
  FW_INLINE void ahead_v(const PairTile& tile, int64_t line) const {
    const int64_t in_part = w_.a.kv.v_dim / 2;  // a multiple of 8
    for (int i = 0; i < Lines; i += 8, line += 8) {
      const uint16_t* from = tile.next_v[line / in_part] + line % in_part * 32;
      for (int j = 0; j < 8; ++j) PairTile::touch(from + 32 * j);
    }
  }

  static constexpr int64_t kRowBytes = 4 * kTile;

  const PairWork& w_;
  int64_t end_;
  bool few_;  // one register of fewer rows than it could have
};

}  // namespace flyweight::FW_ISA
