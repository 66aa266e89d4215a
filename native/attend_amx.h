// bf16 attention with AMX: 16 rows x 32 elements x 16 columns an instruction.  Included by attention.cpp.
//
// Invariant: a score takes 32 elements an instruction, in order; the weighted V 32 positions, in order, whether a tile's
// are added at once or together with the next tile's.  Rows go 16 at a time, or fewer where an item has no more, and those
// that a tile is not for are left alone: a row of a product depends on its own row only.
#pragma once

#include <algorithm>

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

  // Of 64 rows, a part's K is loaded once for all of them: long contexts wait for it.
  void scores(const PairTile& tile, const Span& s) {
    if (few_) return score_few(tile);
    const int64_t begin = s.row / 16 * 16;
    for (int64_t r = begin, rows; r < s.end; r += rows) {
      rows = s.end - r > 48 ? 64 : s.end - r > 16 ? 32 : 16;
      if (rows == 64) {
        score<4, 1>(tile, s, r, r == begin);
      } else if (rows == 32) {
        score<2, 2>(tile, s, r, r == begin);
      } else {
        score<1, 2>(tile, s, r, r == begin);
      }
    }
  }

  // Which of kTogether places the next tile's weights go to: none of those that wait for their product with V.
  int place() const { return place_; }

  // `starts`: the records hold no weighted V yet.  The product of a tile that all rows see waits for the next tile's, so that
  // sums are loaded and stored once for both, unless sums have to be scaled in between.
  void mix(const PairTile& tile, int64_t row, int64_t end, bool starts, float* records) {
    const bool same = std::all_of(w_.factor + row, w_.factor + end, [](float factor) { return factor == 1.0f; });
    if (starts || !same) finish(records);
    if (!starts && !same)
      for (int64_t r = row; r < end; ++r) rescale(r, records);
    if (few_ || row > 0 || end < w_.rows.count() || !tile.in_place) {
      finish(records);
      return mix_now(tile, row, end, starts, records);
    }
    if (waiting_ == 0) starts_ = starts;
    held_[waiting_++] = {tile, w_.weights};
    place_ = (place_ + 1) % static_cast<int>(kTogether);
    if (waiting_ == kTogether) finish(records);
  }

  // Multiplies what waits.
  void finish(float* records) {
    const int64_t v_dim = w_.a.kv.v_dim;
    for (int64_t column = 0; waiting_ > 0 && column < v_dim; column += 32)
      for (int64_t r = 0; r < end_; r += 32)
        with_shape(end_ - r > 16, v_dim - column > 16, [&](auto m, auto n) FW_LAMBDA {
          mix_columns<m, n>(held_, waiting_, r, records + r * w_.stride + 32 + column, column, {r == 0, starts_});
        });
    waiting_ = 0;
  }

 private:
  struct Held {
    PairTile tile;
    const float* weights;
  };

  // f<M, N>() for one or two registers of rows and of columns.
  template <class F>
  FW_INLINE static void with_shape(bool rows, bool columns, F&& f) {
    using One = std::integral_constant<int, 1>;
    using Two = std::integral_constant<int, 2>;
    if (columns) {
      rows ? f(Two{}, Two{}) : f(One{}, Two{});
    } else {
      rows ? f(Two{}, One{}) : f(One{}, One{});
    }
  }

  void mix_now(const PairTile& tile, int64_t row, int64_t end, bool starts, float* records) const {
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

  int64_t k_dim() const { return w_.a.kv.k_dim; }

  // [rows][k_dim]; rows of padding stay unchanged, what comes of them is not read.
  void pack_q() {
    alignas(64) float room[kMaxHead];
    for (int64_t r = 0; r < w_.rows.count(); ++r) {
      const float* q = w_.query(r, room);
      for (int64_t d = 0; d < k_dim(); d += 32) bstore(w_.q + r * k_dim() + d, pack_bf16(load(q + d), load(q + d + 16)));
    }
  }

  // 16 M rows from r on, P parts at a time; `first`: the next tile is to be touched.  Parts that none of these rows sees are
  // left as they are, the softmax does not prefetch them.  Registers: sums 0 to 3, rows 4 and 5, positions 6, 7.
  template <int M, int P>
  void score(const PairTile& tile, const Span& s, int64_t r, bool first) const {
    const uint16_t* q = w_.q + r * k_dim();
    float* to = w_.scores + r * kTile;
    const int64_t below = r < s.row ? s.row : r, last = r + 16 * M < s.end ? r + 16 * M - 1 : s.end - 1;
    const int64_t least = w_.rows.from(below, s.at), most = w_.rows.to(last, s.at);
    const bool ask = first && tile.ahead;
    for (int part = 0; part < kParts; part += P, to += 16 * P) {
      const bool seen = 16 * part < most && 16 * (part + P) > least;
      if (seen) each<M * P>([](auto i) FW_LAMBDA { tile_zero<i>(); });
      for (int64_t d = 0; d < k_dim() && (seen || ask); d += 32) {
        if (ask) each<P>([&](auto p) FW_LAMBDA { ahead<16>(tile.next_k[part + p] + d * 16, 32); });
        if (seen) score_step<M, P>(tile, q, part, d);
      }
      if (seen) each<M * P>([&](auto i) FW_LAMBDA { tile_store<i>(to + i / P * 16 * kTile + i % P * 16, kRowBytes); });
    }
  }

  // Adds 32 elements.
  template <int M, int P>
  FW_INLINE void score_step(const PairTile& tile, const uint16_t* q, int part, int64_t d) const {
    each<P>([&](auto p) FW_LAMBDA { tile_load<6 + p>(tile.k[part + p] + d * 16, 64); });
    each<M>([&](auto m) FW_LAMBDA {
      tile_load<4 + m % 2>(q + m * 16 * k_dim() + d, 2 * k_dim());
      each<P>([&](auto p) FW_LAMBDA { tile_dot_bf16<m * P + p, 4 + m % 2, 6 + p>(); });
    });
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
      tile_load<4>(w_.weights + 16 * half, kWeightBytes);
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
    const Held held{tile, w_.weights};
    for (; column + 32 <= w_.a.kv.v_dim; column += 32) mix_columns<M, 2>(&held, 1, r, to + 32 + column, column, turn);
    if (column < w_.a.kv.v_dim) mix_columns<M, 1>(&held, 1, r, to + 32 + column, column, turn);
  }

  // 16 N columns of it, of `count` tiles in order.  Registers: sums 0 to 3, weights 4 and 5, V 6 and 7.
  template <int M, int N>
  void mix_columns(const Held* held, int count, int64_t r, float* to, int64_t column, Turn turn) const {
    const int64_t next = 4 * w_.stride, down = 16 * w_.stride;
    load_sum<0>(turn.starts, to, next);
    if constexpr (N > 1) load_sum<1>(turn.starts, to + 16, next);
    if constexpr (M > 1) load_sum<2>(turn.starts, to + down, next);
    if constexpr (M > 1 && N > 1) load_sum<3>(turn.starts, to + down + 16, next);
    for (int i = 0; i < count; ++i)
      for (int half = 0; half < 2; ++half) {
        add_half<M, N>(held[i].tile, held[i].weights + r * kWeights + 16 * half, half, column);
        if (turn.first && held[i].tile.ahead)
          ahead_v<16 * N>(held[i].tile, 2 * column + half * 16 * N);
      }
    tile_store<0>(to, next);
    if constexpr (N > 1) tile_store<1>(to + 16, next);
    if constexpr (M > 1) tile_store<2>(to + down, next);
    if constexpr (M > 1 && N > 1) tile_store<3>(to + down + 16, next);
  }

  // Adds 32 positions.
  template <int M, int N>
  FW_INLINE void add_half(const PairTile& tile, const float* weights, int half, int64_t column) const {
    const uint16_t* v = tile.v[2 * half] + 2 * column;
    tile_load<4>(weights, kWeightBytes);
    load_v<6>(tile, half, v, 2 * tile.v_stride);
    tile_dot_bf16<0, 4, 6>();
    if constexpr (N > 1) {
      load_v<7>(tile, half, v + 32, 2 * tile.v_stride);
      tile_dot_bf16<1, 4, 7>();
    }
    if constexpr (M > 1) {
      tile_load<5>(weights + 16 * kWeights, kWeightBytes);
      tile_dot_bf16<2, 5, 6>();
      if constexpr (N > 1) tile_dot_bf16<3, 5, 7>();
    }
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

  // Lines of the next V in the order of memory, not of columns: that is what streams well.
  template <int Lines>
  FW_INLINE void ahead_v(const PairTile& tile, int64_t line) const {
    const int64_t in_part = w_.a.kv.v_dim / 2;  // a multiple of 8
    for (int i = 0; i < Lines; i += 8, line += 8) {
      const uint16_t* from = tile.next_v[line / in_part] + line % in_part * 32;
      for (int j = 0; j < 8; ++j) PairTile::touch(from + 32 * j);
    }
  }

  static constexpr int64_t kRowBytes = 4 * kTile, kWeightBytes = 4 * kWeights;

  const PairWork& w_;
  int64_t end_;
  bool few_;  // one register of fewer rows than it could have
  Held held_[kTogether];
  int waiting_ = 0, place_ = 0;
  bool starts_ = false;  // of the first that waits
};

}  // namespace flyweight::FW_ISA
