// One tile in bf16: q, K, V and the softmax weights are multiplied in pairs, sums and the softmax itself are float32.
// Included by attention.cpp.
//
// Invariant: a row's weighted V is scaled by its maximum's factor, then takes all 64 positions of the tile, the
// unseen ones with weight and value zero.  Nothing a row does not see reaches it: where rows differ in what they see and
// something there is not finite, each token's rows are done by themselves.  `Math` fixes the order within a tile.
#pragma once

#include <algorithm>

#include "attend_pair_softmax.h"
#include "attend_pair_source.h"
#include "attend_rows.h"
#include "kv_codes.h"

namespace flyweight::FW_ISA {

// What a Math works on: 16-bit q, scores, the weights they become, factors, records.
struct PairWork {
  const AttendArgs& a;
  const Rows& rows;
  uint16_t* q;
  float *scores, *weights, *factor;
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
  float* weights = scores + room * kTile;
  float* factor = weights + kTogether * room * kWeights;
  return {a, rows, reinterpret_cast<uint16_t*>(q), scores, weights, factor, record_floats(a.kv.v_dim)};
}

// The softmax of the rows that see a tile, 16 rows at a time, or as many as there are: what one waits for the others fill.
// A row's maximum stays until a score is larger by more than kSlack, so that its sums are seldom scaled.
class PairSoftmax {
 public:
  PairSoftmax(const PairWork& work, const AttendItem& item) : work_(work), item_(item) {}

  template <class Scales>
  void run(const Span& s, const Next& next, const Scales& scales, float* records) const {
    const bool last = next.item != &item_;
    for (int64_t r = s.row, end; r < s.end; r = end) {
      end = r / 16 * 16 + 16 < s.end ? r / 16 * 16 + 16 : s.end;
      const bool all = work_.rows.from(end - 1, s.at) == 0 && work_.rows.to(r, s.at) == kTile;
      if (!all || !keep<Scales>(r, end, records)) raise(s.at, r, end, scales, records);
      weigh_rows(s.at, r, end, all, scales, records);
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
  static constexpr float kSlack = 8.0f, kLog2E = 1.44269504f;

  // What scores are still to be multiplied with once their maximum is known.
  template <class Scales>
  float score_scale() const {
    return work_.a.softcap > 0 || Scales::kScaled ? 1.0f : work_.a.scale;
  }

  Seen seen(int64_t r, int64_t at) const { return {work_.rows.from(r, at), work_.rows.to(r, at)}; }

  // Whether rows [begin, end), which see the whole tile, all keep their maxima; then factor := 1.
  template <class Scales>
  bool keep(int64_t begin, int64_t end, const float* records) const {
    if (work_.a.softcap > 0 || Scales::kScaled) return false;
    const F32x16 scale = set1(work_.a.scale);
    uint32_t above = 0;
    for (int64_t r = begin; r < end; ++r) {
      const F32x16 top = top_of<kVectors, false>(work_.scores + r * kTile, work_.a, {0, kTile}, Unscaled{});
      above |= mask_gt(mul(top, scale), set1(records[r * work_.stride] + kSlack));
    }
    if (above != 0) return false;
    std::fill(work_.factor + begin, work_.factor + end, 1.0f);
    return true;
  }

  // Brings the maxima of rows [begin, end) up to this tile; factor := e^(old - new).
  template <class Scales>
  void raise(int64_t at, int64_t begin, int64_t end, const Scales& scales, float* records) const {
    const auto by = scales.of_k();
    const float scale = score_scale<Scales>();
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
      const float before = record, top = here[r - begin] * scale, now = top > before + kSlack ? top : before;
      work_.factor[r] = before - now;
      record = now;
    }
    float* factor = work_.factor + begin / 16 * 16;
    store(factor, exp(load(factor)));
  }

  // `all`: each row sees the whole tile.
  template <class Scales>
  void weigh_rows(int64_t at, int64_t begin, int64_t end, bool all, const Scales& scales, float* records) const {
    const float scale = score_scale<Scales>() * kLog2E;
    const auto by = scales.of_v();
    for (int64_t r = begin; r < end; ++r) {
      const Seen own = all ? Seen{0, kTile} : seen(r, at);
      float *record = records + r * work_.stride, *total = record + 16;
      const F32x16 sum = with_seen(own, [&](auto n, auto part) FW_LAMBDA {
        const float* scores = work_.scores + r * kTile;
        return weigh<n, part>(scores, work_.weights + r * kWeights, scale, record[0] * kLog2E, own, by);
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
    work_.weights = weights_ + math_.place() * padded(work_.rows.count()) * kWeights;
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

  // Multiplies what waits; ends a split.
  void finish(float* records) { math_.finish(records); }

 private:
  // Whether all rows may take the tile as it is: what only some of them see is finite.
  bool mixes(const PairTile& tile, const Span& s) const {
    const int64_t low = work_.rows.from(s.end - 1, s.at), high = work_.rows.to(s.row, s.at);
    if (low >= high) return source_.finite(tile, s.from, s.to);
    return source_.finite(tile, s.from, low) && source_.finite(tile, high, s.to);
  }

  PairWork work_;
  float* weights_ = work_.weights;  // the first place
  PairSoftmax softmax_;
  PairSource source_;
  Math math_;
};

}  // namespace flyweight::FW_ISA
