// One tile in float32: scores, softmax, weighted sums.  Included by attention.cpp.
//
// Invariant: a score is a chain of fmas over d; the running maximum, the 16 partial sums and the weighted V are updated
// in position order.  Grouping rows and widening tiles into scratch repeats exactly these operations.
#pragma once

#include <type_traits>

#include "attend_rows.h"
#include "attend_softmax.h"
#include "attend_source.h"
#include "attend_tile.h"

namespace flyweight::FW_ISA {

template <class T>
class FloatTiles {
 public:
  static constexpr bool kStarts = false;

  FloatTiles(const AttendArgs& args, const AttendItem& item, const Rows& rows, float* scratch)
      : a_(args), item_(item), rows_(rows), tiles_((rows.count() + kRowTile - 1) / kRowTile),
        tile_rows_((rows.count() + tiles_ - 1) / tiles_), v_padded_(padded(args.kv.v_dim)),
        stride_(record_floats(args.kv.v_dim)), source_(args, item, scratch, scratch + kTile * args.kv.k_dim) {
    const int64_t room = padded(item_rows(args.heads / args.kv.heads));
    q_ = scratch + kTile * (args.kv.k_dim + v_padded_);
    scores_ = q_ + room * args.kv.k_dim;
    factor_ = scores_ + room * kTile;
    pack_q();
  }

  // Brings the rows that see the tile one tile further; `next` is the tile after it.
  void run(const Span& s, const Next& after, float* records) {
    const Span next = after.item == &item_ ? after.span : Span{};
    if (a_.kv.lanes() == 1) {
      source_.gather(s);
      return compute(source_.widened(), s, records);
    }
    // From the third use on, widening once is cheaper than every time; V out of K is turned in scratch.
    if ((tiles_ > 2 && !std::is_same_v<T, float>) || a_.kv.v_in_k) {
      source_.widen(s, next);
      return compute(source_.widened(), s, records);
    }
    compute(source_.stored(s, next), s, records);
  }

  void finish(float*) {}

 private:
  int64_t rows_in(int64_t row) const {
    return rows_.count() - row < tile_rows_ ? rows_.count() - row : tile_rows_;
  }

  // q of each register tile of rows as [k_dim][rows in it]: the broadcasts of one d are adjacent.
  void pack_q() {
    for (int64_t begin = 0; begin < rows_.count(); begin += tile_rows_) {
      const int64_t n = rows_in(begin), k_dim = a_.kv.k_dim;
      for (int64_t r = begin; r < begin + n; ++r) {
        const float* q = rows_.q(r);
        for (int64_t d = 0; d < k_dim; ++d) q_[begin * k_dim + d * n + r - begin] = q[d];
      }
    }
  }

  template <class Tile>
  void compute(const Tile& tile, const Span& s, float* records) {
    const int64_t begin = s.row / tile_rows_ * tile_rows_;
    for (int64_t r = begin; r < s.end; r += tile_rows_) {
      const float* q = q_ + r * a_.kv.k_dim;
      with_rows(rows_in(r), [&](auto n) { score_rows<n.value>(q, tile, a_.kv.k_dim, scores_ + r * kTile); });
    }
    softmax(s, records);
    for (int64_t r = begin; r < s.end; r += tile_rows_) mix(tile, s, r, records);
  }

  void softmax(const Span& s, float* records) {
    for (int64_t r = s.row; r < s.end; ++r)
      factor_[r] =
          softmax_row(scores_ + r * kTile, a_, rows_.from(r, s.at), rows_.to(r, s.at), records + r * stride_);
    for (int64_t r = s.row / 16 * 16; r < s.end; r += 16) store(factor_ + r, exp(load(factor_ + r)));
    for (int64_t r = s.row; r < s.end; ++r) {
      const float* p = scores_ + r * kTile;
      F32x16 sum = load(p);
      for (int i = 1; i < kParts; ++i) sum = add(sum, load(p + 16 * i));
      float* total = records + r * stride_ + 16;
      store(total, fma(load(total), set1(factor_[r]), sum));
    }
  }

  // Positions that every row of the register tile sees go together; what rows see before and beyond them, row by row.
  template <class Tile>
  void mix(const Tile& tile, const Span& s, int64_t begin, float* records) {
    const int64_t end = begin + rows_in(begin);
    const bool all = begin >= s.row && end <= s.end;
    const int64_t low = all ? rows_.from(end - 1, s.at) : kTile, high = all ? rows_.to(begin, s.at) : kTile;
    if (low >= high) {
      for (int64_t r = begin < s.row ? s.row : begin; r < end && r < s.end; ++r)
        mix_own(tile, factor_ + r, rows_.from(r, s.at), rows_.to(r, s.at), r, records);
      return;
    }
    for (int64_t r = begin; r < end && rows_.from(r, s.at) < low; ++r) {
      mix_own(tile, factor_ + r, rows_.from(r, s.at), low, r, records);
      factor_[r] = 1.0f;
    }
    with_rows(end - begin, [&](auto n) {
      float* acc = records + begin * stride_ + 32;
      mix_rows<n.value>(scores_ + begin * kTile, factor_ + begin, tile, low, high, v_padded_, acc, stride_);
    });
    for (int64_t r = end - 1; r >= begin && rows_.to(r, s.at) > high; --r)
      mix_own(tile, kOne, high, rows_.to(r, s.at), r, records);
  }

  template <class Tile>
  void mix_own(const Tile& tile, const float* factor, int64_t low, int64_t high, int64_t r, float* records) {
    mix_rows<1>(scores_ + r * kTile, factor, tile, low, high, v_padded_, records + r * stride_ + 32, stride_);
  }

  static constexpr float kOne[1] = {1.0f};

  const AttendArgs& a_;
  const AttendItem& item_;
  const Rows& rows_;
  int64_t tiles_, tile_rows_, v_padded_, stride_;
  TileSource<T> source_;
  float *q_, *scores_, *factor_;
};

}  // namespace flyweight::FW_ISA
