// One tile in bf16: q, K, V and the softmax weights are multiplied in pairs, sums and the softmax itself are float32.
// Included by attention.cpp.
//
// Invariant: a row's weighted V is scaled by the running maximum's factor, then takes all 64 positions of the tile, the
// unseen ones with weight and value zero.  Nothing a row does not see reaches it: where rows differ in what they see and
// something there is not finite, each token's rows are done by themselves.  `Math` fixes the order within a tile.
#pragma once

#include "attend_pair_source.h"
#include "attend_rows.h"
#include "attend_softmax.h"

namespace flyweight::FW_ISA {

// What a Math works on: 16-bit q, scores that become weights in place, factors, records.
struct PairWork {
  const AttendArgs& a;
  const Rows& rows;
  uint16_t* q;
  float *scores, *factor;
  int64_t stride;  // floats of a record
};

template <class Math>
class PairTiles {
 public:
  PairTiles(const AttendArgs& args, const AttendItem& item, const Rows& rows, float* scratch)
      : work_(work(args, rows, scratch)), source_(args, item, reinterpret_cast<uint16_t*>(scratch), Math::kWhole),
        math_(work_) {}

  // Brings the rows that see the tile one tile further; `next` is the tile after it.
  void run(const Span& s, const Next& next, float* records) {
    const PairTile stored = source_.stored(s, next);
    math_.scores(stored, s.row, s.end);
    softmax(s, records);
    const PairTile tile = source_.settled(stored, s.from, s.to);
    if (mixes(tile, s)) return math_.mix(tile, s.row, s.end, records);
    for (int64_t r = s.row, end; r < s.end; r = end) {
      for (end = r + 1; end < s.end && work_.rows.position(end) == work_.rows.position(r);) ++end;
      math_.mix(source_.settled(stored, work_.rows.from(r, s.at), work_.rows.to(r, s.at)), r, end, records);
    }
  }

 private:
  static PairWork work(const AttendArgs& a, const Rows& rows, float* scratch) {
    const int64_t room = padded(item_rows(a.heads / a.kv.heads));
    float* q = scratch + kTile * (a.kv.k_dim + padded(a.kv.v_dim));
    float* scores = q + room * a.kv.k_dim;
    return {a, rows, reinterpret_cast<uint16_t*>(q), scores, scores + room * kTile, record_floats(a.kv.v_dim)};
  }

  // Whether all rows may take the tile as it is: what only some of them see is finite.
  bool mixes(const PairTile& tile, const Span& s) const {
    const int64_t low = work_.rows.from(s.end - 1, s.at), high = work_.rows.to(s.row, s.at);
    if (low >= high) return source_.finite(tile, s.from, s.to);
    return source_.finite(tile, s.from, low) && source_.finite(tile, high, s.to);
  }

  void softmax(const Span& s, float* records) {
    float* factor = work_.factor;
    for (int64_t r = s.row; r < s.end; ++r)
      factor[r] = softmax_pairs(work_.scores + r * kTile, work_.a, work_.rows.from(r, s.at), work_.rows.to(r, s.at),
                                records + r * work_.stride);
    for (int64_t r = s.row / 16 * 16; r < s.end; r += 16) store(factor + r, exp(load(factor + r)));
    uint16_t ones[32];
    for (uint16_t& one : ones) one = 0x3F80;
    const B8x64 one = bload(ones);
    for (int64_t r = s.row; r < s.end; ++r) {
      const float* p = work_.scores + r * kTile;
      const F32x16 sum = dot_bf16(dot_bf16(zero(), bload(p), one), bload(p + 16), one);
      float* total = records + r * work_.stride + 16;
      store(total, fma(load(total), set1(factor[r]), sum));
    }
  }

  PairWork work_;
  PairSource source_;
  Math math_;
};

}  // namespace flyweight::FW_ISA
