// One tile of K and V in codes: opened to pairs of bf16, in scratch for many rows and in registers for few, and multiplied
// as pairs are.  Included by attention.cpp.
//
// Invariant: what is opened is exact and finite, whatever was stored, so that a weight of zero makes nothing of what a row
// does not see; scales join in the softmax.  Both ways take the same sums in the same order.
#pragma once

#include "attend_dots.h"
#include "attend_pairs.h"
#include "kv_codes.h"

namespace flyweight::FW_ISA {

// K as four parts of codes, V as four of them, v_row bytes two positions.
struct CodeTile {
  const uint8_t* k[kParts];
  const uint8_t* v[kParts];
  const uint8_t* next_k[kParts];
  const uint8_t* next_v[kParts];
  TileScales scales;
  int64_t v_row;
  bool used[kParts];  // whether a query sees some of a part
  bool ahead;         // whether there is a next tile

  FW_INLINE static void touch(const uint8_t* p) { __builtin_prefetch(p, 0, 2); }
};

template <KVType type>
class CodeSource {
 public:
  using Unit = Opened<type>;

  // `room` has place for K and V of kTile positions in bf16.  `whole`: parts of V are read two and two.
  CodeSource(const AttendArgs& args, const AttendItem& item, uint16_t* room, bool whole)
      : args_(args), kv_(args.kv), item_(item), k_(room), v_(room + kTile * args.kv.k_dim), whole_(whole) {}

  CodeTile stored(const Span& s, const Next& next) const {
    CodeTile tile;
    locate(item_, s, tile.k, tile.v);
    for (int part = 0; part < kParts; ++part) {
      tile.used[part] = seen(part, s.from, s.to);
      tile.next_k[part] = tile.k[part], tile.next_v[part] = tile.v[part];
      const F32x16 of_k = load(scales_of(tile.k[part], kv_.k_part()));
      store(tile.scales.k + 16 * part, mul(of_k, set1(args_.scale)));
      store(tile.scales.v + 16 * part, kv_.v_in_k ? of_k : load(scales_of(tile.v[part], kv_.v_part())));
    }
    tile.ahead = next.seen();
    if (tile.ahead) locate(*next.item, next.span, tile.next_k, tile.next_v);
    tile.v_row = kv_.v_stored() * Unit::kBytes / 16 / Unit::kParts;
    return tile;
  }

  // K of the tile in scratch; V is still to come.
  PairTile open_k(const CodeTile& tile) const {
    PairTile out;
    int first = 0;
    while (first < kParts - 1 && !tile.used[first]) ++first;
    for (int part = 0; part < kParts; ++part) {
      out.used[part] = tile.used[part];
      uint16_t* to = k_ + part * 16 * kv_.k_dim;
      if (tile.used[part]) open_k_part(tile.k[part], to);
      out.k[part] = tile.used[part] ? to : k_ + first * 16 * kv_.k_dim;
      out.v[part] = v_ + 8 * part * v_stride();
      out.next_k[part] = words(tile.next_k[part]), out.next_v[part] = words(tile.next_v[part]);
      ask_scales(tile, part);
    }
    out.v_stride = v_stride();
    out.next_vector = Unit::kBytes / Unit::kParts / 2, out.next_row = tile.v_row / 2;
    out.ahead = out.in_place = false;
    if (whole_ && tile.ahead) ask(tile);
    return out;
  }

  void open_v(const CodeTile& tile, const PairTile& out) const {
    for (int part = 0; part < kParts; ++part) {
      if (!tile.used[part] && !(whole_ && tile.used[part ^ 1])) continue;
      uint16_t* to = v_ + 8 * part * v_stride();
      if (kv_.v_in_k) {
        for (int64_t pair = 0; pair < 8; ++pair) turn_pair(kv_, out.k[part], pair, ~0u, to + pair * v_stride());
      } else {
        open_v_part(tile.v[part], tile.v_row, to);
      }
    }
  }

 private:
  static bool seen(int part, int64_t from, int64_t to) { return 16 * part < to && 16 * part + 16 > from; }
  static const float* scales_of(const uint8_t* part, int64_t bytes) {
    return reinterpret_cast<const float*>(part + bytes - kScaleBytes);
  }
  int64_t v_stride() const { return 2 * padded(kv_.v_dim); }

  static const uint16_t* words(const uint8_t* p) { return reinterpret_cast<const uint16_t*>(p); }

  void ask_scales(const CodeTile& tile, int part) const {
    CodeTile::touch(tile.next_k[part] + kv_.k_part() - kScaleBytes);
    if (!kv_.v_in_k) CodeTile::touch(tile.next_v[part] + kv_.v_part() - kScaleBytes);
  }

  // All of the next tile, where the products do not prefetch it.
  void ask(const CodeTile& tile) const {
    for (int part = 0; part < kParts; ++part) {
      for (int64_t i = 0; i < kv_.k_part(); i += 64) CodeTile::touch(tile.next_k[part] + i);
      for (int64_t i = 0; i < kv_.v_part(); i += 64) CodeTile::touch(tile.next_v[part] + i);
    }
  }

  void open_k_part(const uint8_t* from, uint16_t* to) const {
    const int64_t pairs = kv_.k_dim / 2;
    for (int64_t at = 0; at < pairs; at += Unit::kParts, from += Unit::kBytes) {
      each<Unit::kParts>([&](auto i) FW_LAMBDA {
        if (Unit::kParts == 1 || at + i < pairs) bstore(to + (at + i) * 32, Unit::open(from, i));
      });
    }
  }

  void open_v_part(const uint8_t* from, int64_t row, uint16_t* to) const {
    const int64_t vectors = padded(kv_.v_dim) / 16;
    for (int64_t pair = 0; pair < 8; ++pair, from += row, to += v_stride())
      for (int64_t at = 0; at < vectors; at += Unit::kParts) {
        const int64_t unit = at / Unit::kParts * Unit::kBytes;
        each<Unit::kParts>([&](auto i) FW_LAMBDA {
          if (Unit::kParts == 1 || at + i < vectors) bstore(to + (at + i) * 32, Unit::open(from + unit, i));
        });
      }
  }

  // Parts that no query sees repeat the first that a query sees.
  void locate(const AttendItem& item, const Span& s, const uint8_t** k, const uint8_t** v) const {
    const int32_t* table = args_.tables + item.sequence * args_.table_width;
    const auto block = static_cast<uint32_t>(kv_.block);
    for (int part = 0; part < kParts; ++part) {
      const auto position = static_cast<uint32_t>(s.at + (seen(part, s.from, s.to) ? part * 16 : s.from / 16 * 16));
      const int64_t slot = static_cast<int64_t>(table[position / block]) * kv_.block + position % block;
      k[part] = static_cast<const uint8_t*>(kv_.k) + kv_.part(slot, item.head) * kv_.k_part();
      v[part] = kv_.v_in_k ? k[part] : static_cast<const uint8_t*>(kv_.v) + kv_.part(slot, item.head) * kv_.v_part();
    }
  }

  const AttendArgs& args_;
  const KVView& kv_;
  const AttendItem& item_;
  uint16_t *k_, *v_;
  bool whole_;
};

#if defined(FW_ISA_AVX512)
// The sums of DotMath for the rows of one or two register tiles, codes opened in registers for each.
template <KVType type>
class CodeDots {
 public:
  using Unit = Opened<type>;
  static constexpr int kUnit = Unit::kParts;

  // More rows are cheaper with tiles opened once, in scratch.
  static bool fits(const PairWork& work) {
    const KVView& kv = work.a.kv;
    return work.rows.count() <= 2 * kRowTile && kv.k_dim % (2 * kUnit) == 0 && kv.v_dim % 64 == 0 && !kv.v_in_k;
  }

  // `rows`: of a register tile, as q is packed.
  CodeDots(const PairWork& work, int64_t rows) : w_(work), rows_(rows) {}

  void scores(const CodeTile& tile, const Span& s) const {
    for (int64_t r = s.row / rows_ * rows_; r < s.end; r += rows_)
      with_rows(w_.rows.count() - r < rows_ ? w_.rows.count() - r : rows_, [&](auto n) { score<n.value>(tile, r); });
  }

  void mix(const CodeTile& tile, int64_t row, int64_t end, bool starts, float* records) const {
    for (int64_t r = row; r < end; r += rows_)
      with_rows(end - r < rows_ ? end - r : rows_, [&](auto n) {
        for (int64_t column = 0; column < w_.a.kv.v_dim; column += 64) sums<n.value>(tile, r, column, starts, records);
      });
  }

 private:
  template <int R>
  void score(const CodeTile& tile, int64_t row) const {
    F32x16 sum[R][kParts];
    each<R * kParts>([&](auto i) FW_LAMBDA { sum[i / kParts][i % kParts] = zero(); });
    const int64_t bytes = w_.a.kv.k_dim / (2 * kUnit) * Unit::kBytes;
    const uint16_t* q = w_.q + row * w_.a.kv.k_dim;
    float* to = w_.scores + row * kTile;
    for (int64_t at = 0; at < bytes; at += Unit::kBytes, q += 2 * kUnit * R) {
      if (kUnit > 1 || at % 64 == 0)
        each<kParts>([&](auto w) FW_LAMBDA { CodeTile::touch(tile.next_k[w] + at); });
      each<kUnit>([&](auto i) FW_LAMBDA {
        B8x64 k[kParts];
        each<kParts>([&](auto w) FW_LAMBDA { k[w] = Unit::open(tile.k[w] + at, i); });
        each<R>([&](auto r) FW_LAMBDA {
          const B8x64 x = set4(q + 2 * (i * R + r));
          each<kParts>([&](auto w) FW_LAMBDA { sum[r][w] = dot_bf16(sum[r][w], x, k[w]); });
        });
      });
    }
    each<kParts>([&](auto w) FW_LAMBDA { CodeTile::touch(tile.next_k[w] + bytes); });
    each<R * kParts>([&](auto i) FW_LAMBDA { store(to + i / kParts * kTile + i % kParts * 16, sum[i / kParts][i % kParts]); });
  }

  // 64 columns.
  template <int R>
  void sums(const CodeTile& tile, int64_t row, int64_t column, bool starts, float* records) const {
    float* to = records + row * w_.stride + 32 + column;
    const float* p = w_.weights + row * kWeights;
    const int64_t place = column * Unit::kBytes / (16 * kUnit);
    F32x16 sum[R][4];
    each<R * 4>([&](auto i) FW_LAMBDA {
      constexpr int r = i / 4, w = i % 4;
      sum[r][w] = starts ? zero() : mul(load(to + r * w_.stride + w * 16), set1(w_.factor[row + r]));
    });
    for (int part = 0; part < kParts; ++part, p += 8) {
      const B8x64 none = bset1(0);
      if (!tile.used[part]) {
        each<R * 4>([&](auto i) FW_LAMBDA { sum[i / 4][i % 4] = dot_bf16(sum[i / 4][i % 4], none, none); });
        continue;
      }
      const uint8_t* from = tile.v[part] + place;
      const uint8_t* ahead = tile.next_v[part] + place;
      for (int64_t pair = 0; pair < 8; ++pair, from += tile.v_row, ahead += tile.v_row) {
        B8x64 v[4];
        each<4>([&](auto w) FW_LAMBDA { v[w] = Unit::open(from + w / kUnit * Unit::kBytes, w % kUnit); });
        CodeTile::touch(ahead);
        if (kUnit == 1) CodeTile::touch(ahead + 64);
        each<R>([&](auto r) FW_LAMBDA {
          const B8x64 x = set4(p + r * kWeights + pair);
          each<4>([&](auto w) FW_LAMBDA { sum[r][w] = dot_bf16(sum[r][w], x, v[w]); });
        });
      }
      if (column == 0) CodeTile::touch(tile.next_v[part] + 8 * tile.v_row);
    }
    each<R * 4>([&](auto i) FW_LAMBDA { store(to + i / 4 * w_.stride + i % 4 * 16, sum[i / 4][i % 4]); });
  }

  const PairWork& w_;
  int64_t rows_;
};
#endif

template <KVType type, class Math>
class CodeTiles {
 public:
  static constexpr bool kStarts = true;

  CodeTiles(const AttendArgs& args, const AttendItem& item, const Rows& rows, float* scratch)
      : work_(pair_work(args, rows, scratch)), softmax_(work_, item),
        source_(args, item, reinterpret_cast<uint16_t*>(scratch), Math::kWhole), math_(work_) {}

  // Brings the rows that see the tile one tile further; `next` is the tile after it.
  void run(const Span& s, const Next& next, float* records) {
    const CodeTile stored = source_.stored(s, next);
#if defined(FW_ISA_AVX512)
    if constexpr (!Math::kWhole) {
      if (CodeDots<type>::fits(work_)) {
        const CodeDots<type> dots(work_, math_.tile_rows());
        dots.scores(stored, s);
        return dots.mix(stored, s.row, s.end, weigh(stored, s, next, records), records);
      }
    }
#endif
    const PairTile tile = source_.open_k(stored);
    math_.scores(tile, s);
    const bool starts = weigh(stored, s, next, records);
    source_.open_v(stored, tile);
    math_.mix(tile, s.row, s.end, starts, records);
  }

  void finish(float* records) { math_.finish(records); }

 private:
  // Scores become weights.  Returns whether the records hold no weighted V yet.
  bool weigh(const CodeTile& stored, const Span& s, const Next& next, float* records) const {
    softmax_.run(s, next, stored.scales, records);
    const bool starts = s.starts && softmax_.plain(s);
    if (s.starts && !starts) softmax_.clear_mixed(s, records);
    return starts;
  }

  PairWork work_;
  PairSoftmax softmax_;
  CodeSource<type> source_;
  Math math_;
};

}  // namespace flyweight::FW_ISA
