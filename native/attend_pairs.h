// One tile in bf16: q, K, V and the softmax weights are multiplied in pairs, sums and the softmax itself are float32.
// Included by attention.cpp.
//
// Invariant: a row's weighted V is scaled by the running maximum's factor, then takes all 64 positions of the tile, the
// unseen ones with weight and value zero.  Nothing a row does not see reaches it: where rows differ in what they see and
// something there is not finite, each token's rows are done by themselves.  `Math` fixes the order within a tile.
#pragma once

#include <algorithm>

#include "attend_pair_softmax.h"
#include "attend_pair_source.h"
#include "attend_rows.h"
#include "kv_codes.h"

namespace flyweight::FW_ISA {

// What a Math works on: 16-bit q, scores that become weights in place, factors, records.
struct PairWork {
  const AttendArgs& a;
  const Rows& rows;
  uint16_t* q;
  float *scores, *factor;
  int64_t stride;  // floats of a record

  // q of a row as K is stored; `room` has place for it.
  const float* query(int64_t row, float* room) const {
    const float* given = rows.q(row);
    if (a.kv.turn_block() == 1) return given;
    std::memcpy(room, given, static_cast<size_t>(a.kv.k_dim) * sizeof(float));
    turn_row(room, a.kv.k_dim, a.kv.turn_block());
    return room;
  }
};

inline PairWork pair_work(const AttendArgs& a, const Rows& rows, float* scratch) {
  const int64_t room = padded(item_rows(a.heads / a.kv.heads));
  float* q = scratch + kTile * (a.kv.k_dim + padded(a.kv.v_dim));
  float* scores = q + room * a.kv.k_dim;
  return {a, rows, reinterpret_cast<uint16_t*>(q), scores, scores + room * kTile, record_floats(a.kv.v_dim)};
}

// The softmax of the rows that see a tile, 16 rows at a time, or as many as there are: what one waits for the others fill.
class PairSoftmax {
 public:
  PairSoftmax(const PairWork& work, const AttendItem& item) : work_(work), item_(item) {}

  template <class Scales>
  void run(const Span& s, const Next& next, const Scales& scales, float* records) const {
    const bool last = next.item != &item_;
    for (int64_t r = s.row, end; r < s.end; r = end) {
      end = r / 16 * 16 + 16 < s.end ? r / 16 * 16 + 16 : s.end;
      raise(s.at, r, end, scales, records);
      weigh_rows(s.at, r, end, scales, records);
      for (int64_t i = r; last && i < end; ++i) work_.rows.ask_after(i, next.item);
    }
  }

  // Whether nothing times each row's factor is nothing, as when its first scores are not infinite.
  bool plain(const Span& s) const {
    return std::all_of(work_.factor + s.row, work_.factor + s.end, [](float factor) { return factor == 0.0f; });
  }

  void clear_mixed(const Span& s, float* records) const {
    for (int64_t r = s.row; r < s.end; ++r)
      for (int64_t i = 32; i < work_.stride; i += 16) store(records + r * work_.stride + i, zero());
  }

 private:
  Seen seen(int64_t r, int64_t at) const { return {work_.rows.from(r, at), work_.rows.to(r, at)}; }

  // Brings the maxima of rows [begin, end) up to this tile; factor := e^(old - new).
  template <class Scales>
  void raise(int64_t at, int64_t begin, int64_t end, const Scales& scales, float* records) const {
    const auto by = scales.of_k();
    F32x16 tops[16];
    float here[16];
    for (int64_t r = begin; r < end; ++r)
      tops[r - begin] = with_seen(seen(r, at), [&](auto n, auto part) FW_LAMBDA {
        return top_of<n, part>(work_.scores + r * kTile, work_.a, seen(r, at), by);
      });
    if (end - begin == 16) {
      hmax16(tops, here);
    } else {
      for (int64_t i = 0; i < end - begin; ++i) here[i] = hmax(tops[i]);
    }
    for (int64_t r = begin; r < end; ++r) {
      float& record = records[r * work_.stride];
      const float before = record, now = here[r - begin] > before ? here[r - begin] : before;
      work_.factor[r] = before - now;
      record = now;
    }
    float* factor = work_.factor + begin / 16 * 16;
    store(factor, exp(load(factor)));
  }

  template <class Scales>
  void weigh_rows(int64_t at, int64_t begin, int64_t end, const Scales& scales, float* records) const {
    const float scale = work_.a.softcap > 0 || Scales::kScaled ? 1.0f : work_.a.scale;
    const auto by = scales.of_v();
    for (int64_t r = begin; r < end; ++r) {
      float *record = records + r * work_.stride, *total = record + 16;
      const F32x16 sum = with_seen(seen(r, at), [&](auto n, auto part) FW_LAMBDA {
        return weigh<n, part>(work_.scores + r * kTile, scale, seen(r, at), record[0], by);
      });
      store(total, fma(load(total), set1(work_.factor[r]), sum));
    }
  }

  const PairWork& work_;
  const AttendItem& item_;
};

template <class Math>
class PairTiles {
 public:
  static constexpr bool kStarts = true;

  PairTiles(const AttendArgs& args, const AttendItem& item, const Rows& rows, float* scratch)
      : work_(pair_work(args, rows, scratch)), softmax_(work_, item),
        source_(args, item, reinterpret_cast<uint16_t*>(scratch), Math::kWhole), math_(work_) {}

  // Brings the rows that see the tile one tile further; `next` is the tile after it.
  void run(const Span& s, const Next& next, float* records) {
    const PairTile stored = source_.stored(s, next);
    math_.scores(stored, s);
    softmax_.run(s, next, Unscaled{}, records);
    const PairTile tile = source_.settled(stored, s.from, s.to);
    const bool whole = mixes(tile, s), starts = s.starts && whole && softmax_.plain(s);
    if (s.starts && !starts) softmax_.clear_mixed(s, records);
    if (whole) return math_.mix(tile, s.row, s.end, starts, records);
    for (int64_t r = s.row, end; r < s.end; r = end) {
      for (end = r + 1; end < s.end && work_.rows.position(end) == work_.rows.position(r);) ++end;
      math_.mix(source_.settled(stored, work_.rows.from(r, s.at), work_.rows.to(r, s.at)), r, end, false, records);
    }
  }

 private:
  // Whether all rows may take the tile as it is: what only some of them see is finite.
  bool mixes(const PairTile& tile, const Span& s) const {
    const int64_t low = work_.rows.from(s.end - 1, s.at), high = work_.rows.to(s.row, s.at);
    if (low >= high) return source_.finite(tile, s.from, s.to);
    return source_.finite(tile, s.from, low) && source_.finite(tile, high, s.to);
  }

  PairWork work_;
  PairSoftmax softmax_;
  PairSource source_;
  Math math_;
};

}  // namespace flyweight::FW_ISA
