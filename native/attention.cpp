// Paged, ragged, grouped-query attention with an online softmax (Milakov and Gimelshein, 2018; Dao et al., 2022).
//
// Invariant: one canonical order per query row.  A score is a chain of fmas over d; a tile of 64 positions updates the
// running maximum, the 16 partial sums and the weighted V in position order; a split of 512 positions is a softmax of
// its own; splits are folded in ascending order.  Tiles and splits lie at fixed positions of the context, and a row
// starts at the first that holds a position it sees: a window is part of the row, never of the item.  Grouping rows,
// widening tiles into scratch or computing splits apart repeats exactly these operations, so a row's bits depend on its
// q and the K/V it sees, on nothing else.
#include "attend_softmax.h"
#include "attend_source.h"
#include "attend_tile.h"
#include "kernels_attention.h"
#include "simd.h"

namespace flyweight::FW_ISA {
namespace {

constexpr float kOne[1] = {1.0f};

float sink_of(const AttendArgs& a, int64_t head) { return a.sinks == nullptr ? -INFINITY : a.sinks[head]; }

// One worker computing one item.  Rows are (token, query head of the group), token by token, so positions ascend.
template <class T>
class Worker {
 public:
  Worker(const AttendArgs& args, const AttendItem& item, float* scratch)
      : a_(args), item_(item), group_(args.heads / args.kv.heads), rows_(item.count * group_),
        tiles_((rows_ + kRowTile - 1) / kRowTile), tile_rows_((rows_ + tiles_ - 1) / tiles_),
        v_padded_(padded(args.kv.v_dim)), stride_(record_floats(args.kv.v_dim)),
        source_(args, item, scratch, scratch + kTile * args.kv.k_dim) {
    const int64_t room = item_rows(group_);
    q_ = scratch + kTile * (a_.kv.k_dim + v_padded_);
    scores_ = q_ + padded(room * a_.kv.k_dim);
    factor_ = scores_ + room * kTile;
    running_ = factor_ + padded(room);
    folded_ = running_ + room * stride_;
  }

  void run(float* records) {
    pack_q();
    for (int64_t split = item_.first; split < item_.last; ++split) {
      float* into = records ? records + (item_.record + (split - item_.first) * rows_) * stride_ : running_;
      run_split(split, into);
      if (!records) fold_split(split);
    }
    if (records) return;
    for (int64_t r = 0; r < rows_; ++r) finish(out_row(r), folded_ + r * stride_, a_.kv.v_dim, sink_of(a_, head(r)));
  }

 private:
  // A row sees positions [first(row), position(row)] of the context; both ascend with the row.
  int64_t position(int64_t row) const { return a_.positions[item_.token + row / group_]; }
  int64_t first(int64_t row) const { return a_.window > 0 ? first_seen(position(row), a_.window) : 0; }
  // The same within a tile: [from, to).
  int64_t from(int64_t row, int64_t at) const { return within(first(row) - at); }
  int64_t to(int64_t row, int64_t at) const { return within(position(row) + 1 - at); }
  static int64_t within(int64_t n) { return n < 0 ? 0 : n < kTile ? n : kTile; }

  int64_t head(int64_t r) const { return item_.head * group_ + r % group_; }
  float* out_row(int64_t r) const {
    return a_.out + ((item_.token + r / group_) * a_.heads + head(r)) * a_.kv.v_dim;
  }
  int64_t rows_in(int64_t row) const { return rows_ - row < tile_rows_ ? rows_ - row : tile_rows_; }

  // q of each register tile of rows as [k_dim][rows in it]: the broadcasts of one d are adjacent.
  void pack_q() {
    for (int64_t begin = 0; begin < rows_; begin += tile_rows_) {
      const int64_t n = rows_in(begin), k_dim = a_.kv.k_dim;
      for (int64_t r = begin; r < begin + n; ++r) {
        const float* q = a_.q + ((item_.token + r / group_) * a_.heads + head(r)) * k_dim;
        for (int64_t d = 0; d < k_dim; ++d) q_[begin * k_dim + d * n + r - begin] = q[d];
      }
    }
  }

  // The tile at `at` as this item sees it, given the span of a tile before it.
  Span span(int64_t at, Span s) const {
    s.at = at;
    while (s.row < rows_ && position(s.row) < at) ++s.row;
    while (s.end < rows_ && first(s.end) < at + kTile) ++s.end;
    if (!s.seen()) return s;
    s.from = from(s.row, at);
    s.to = to(s.end - 1, at);
    return s;
  }

  void run_split(int64_t split, float* records) {
    const int64_t start = split * kSplit, last = position(rows_ - 1);
    int64_t row = 0;
    while (position(row) < start) ++row;
    for (int64_t r = row; r < rows_ && first(r) < start + kSplit; ++r) clear(records + r * stride_, stride_);
    const int64_t tile = first(row) / kTile * kTile;
    Span now = span(tile > start ? tile : start, {});
    while (now.at < start + kSplit && now.at <= last) {
      const Span next = span(now.at + kTile, now);
      if (now.seen()) run_tile(now, next, records);
      now = next;
    }
  }

  void fold_split(int64_t split) {
    for (int64_t r = 0; r < rows_; ++r) {
      const int64_t own = first(r) / kSplit;  // the split a row's softmax starts with
      if (split < own || position(r) < split * kSplit) continue;
      float* into = folded_ + r * stride_;
      if (split > own) {
        fold(into, running_ + r * stride_, stride_);
      } else {
        for (int64_t i = 0; i < stride_; i += 16) store(into + i, load(running_ + r * stride_ + i));
      }
    }
  }

  void run_tile(const Span& s, const Span& next, float* records) {
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
      factor_[r] = softmax_row(scores_ + r * kTile, a_, from(r, s.at), to(r, s.at), records + r * stride_);
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
    const int64_t low = all ? from(end - 1, s.at) : kTile, high = all ? to(begin, s.at) : kTile;
    if (low >= high) {
      for (int64_t r = begin < s.row ? s.row : begin; r < end && r < s.end; ++r)
        mix_own(tile, factor_ + r, from(r, s.at), to(r, s.at), r, records);
      return;
    }
    for (int64_t r = begin; r < end && from(r, s.at) < low; ++r) {
      mix_own(tile, factor_ + r, from(r, s.at), low, r, records);
      factor_[r] = 1.0f;
    }
    with_rows(end - begin, [&](auto n) {
      float* acc = records + begin * stride_ + 32;
      mix_rows<n.value>(scores_ + begin * kTile, factor_ + begin, tile, low, high, v_padded_, acc, stride_);
    });
    for (int64_t r = end - 1; r >= begin && to(r, s.at) > high; --r)
      mix_own(tile, kOne, high, to(r, s.at), r, records);
  }

  template <class Tile>
  void mix_own(const Tile& tile, const float* factor, int64_t low, int64_t high, int64_t r, float* records) {
    mix_rows<1>(scores_ + r * kTile, factor, tile, low, high, v_padded_, records + r * stride_ + 32, stride_);
  }

  const AttendArgs& a_;
  const AttendItem& item_;
  int64_t group_, rows_, tiles_, tile_rows_, v_padded_, stride_;
  TileSource<T> source_;
  float *q_, *scores_, *factor_, *running_, *folded_;
};

void merge(const AttendArgs& a, const AttendMerge& m, float* records) {
  const int64_t group = a.heads / a.kv.heads, rows = m.count * group, stride = record_floats(a.kv.v_dim);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t token = m.token + r / group, head = m.head * group + r % group, position = a.positions[token];
    const int64_t first = first_seen(position, a.window) / kSplit, splits = position / kSplit + 1 - first;
    float* into = records + (m.record + (first - m.first) * rows + r) * stride;
    for (int64_t split = 1; split < splits; ++split) fold(into, into + split * rows * stride, stride);
    finish(a.out + (token * a.heads + head) * a.kv.v_dim, into, a.kv.v_dim, sink_of(a, head));
  }
}

void attend(Pool& pool, const AttendArgs& a, const AttendWork& work, float* scratch) {
  const int64_t each = worker_floats(a.heads / a.kv.heads, a.kv);
  float* records = scratch + each * pool.threads();
  pool.run(work.item_count, [&](int64_t chunk, int worker) {
    const AttendItem& item = work.items[chunk];
    float* own = scratch + each * worker;
    float* apart = item.record < 0 ? nullptr : records;
    switch (a.kv.type) {
      case KVType::f16: return Worker<Half>(a, item, own).run(apart);
      case KVType::bf16: return Worker<Brain>(a, item, own).run(apart);
      case KVType::f32: return Worker<float>(a, item, own).run(apart);
    }
  });
  if (work.merge_count == 0) return;
  pool.run(work.merge_count, [&](int64_t chunk, int) { merge(a, work.merges[chunk], records); });
}

}  // namespace

void rope_store(Pool& pool, const RopeStoreArgs& args);  // rope_store.cpp
void move_kv(Pool& pool, const KVView& kv, const int32_t* src, const int32_t* dst, int64_t count, void* scratch);

extern const AttentionKernels attention_kernels;
const AttentionKernels attention_kernels = {rope_store, attend, move_kv};

}  // namespace flyweight::FW_ISA
