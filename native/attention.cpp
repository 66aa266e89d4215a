// Paged, ragged, grouped-query attention with an online softmax (Milakov and Gimelshein, 2018; Dao et al., 2022).
//
// Invariant: one canonical order per query row.  A score is a chain of fmas over d; a tile of 64 positions updates the
// running maximum, the 16 partial sums and the weighted V in position order; a split of 512 positions is a softmax of
// its own; splits are folded in ascending order.  Grouping rows, widening tiles into scratch or computing splits apart
// repeats exactly these operations, so a row's bits depend on its q and the K/V it sees, on nothing else.
// The kernels never use a K/V value beyond a row's own position, though vector loads may touch such slots of a block.
#include <cmath>
#include <type_traits>

#include "kernels_attention.h"
#include "simd.h"

namespace flyweight::FW_ISA {
namespace {

// Register tiles: kRowTile query rows x kWide vectors of accumulators, kWide loads and one broadcast must fit.
#if defined(FW_ISA_AVX512)
constexpr int kRowTile = 6, kWide = 4;  // 24 + 4 + 1 of 32 zmm
#elif defined(FW_ISA_AVX2)
constexpr int kRowTile = 3, kWide = 2;  // 12 + 2 of 16 ymm pairs-as-two, the broadcast from memory
#elif defined(FW_ISA_NEON)
constexpr int kRowTile = 4, kWide = 1;  // 16 + 4 + 1 of 32 q registers
#else
constexpr int kRowTile = 2, kWide = 1;
#endif
constexpr int kParts = static_cast<int>(kTile / 16);

struct Half {
  uint16_t bits;
};
struct Brain {
  uint16_t bits;
};
FW_INLINE F32x16 widen(const float* p) { return load(p); }
FW_INLINE F32x16 widen(const Half* p) { return load_f16(&p->bits); }
FW_INLINE F32x16 widen(const Brain* p) { return load_bf16(&p->bits); }

// A tile's memory: K as four [k_dim][16] parts, V as four [16][v_stride] parts.  Parts past the context repeat part 0.
template <class T>
struct Parts {
  const T* k[kParts];
  const T* v[kParts];
};

// Reading a tile in the cache's own memory touches the same places of the one after it: blocks lie anywhere, so the
// hardware's prefetchers start anew every 16 positions.
template <class T>
struct StoredTile : Parts<T> {
  using Element = T;
  Parts<T> next;
  int64_t v_stride;

  FW_INLINE void touch_k(int part, int64_t at) const { touch(next.k[part] + at); }
  FW_INLINE void touch_v(int64_t part, int64_t at) const { touch(next.v[part] + at); }
  FW_INLINE static void touch(const T* p) { __builtin_prefetch(p, 0, 2); }
};

struct WidenedTile : Parts<float> {
  using Element = float;
  int64_t v_stride;

  FW_INLINE void touch_k(int, int64_t) const {}
  FW_INLINE void touch_v(int64_t, int64_t) const {}
};

// scores[r][16*part + lane] for R rows; q is packed [k_dim][R].
template <int R, class Tile>
void score_rows(const float* q, const Tile& tile, int64_t k_dim, float* scores) {
  for (int part = 0; part < kParts; part += kWide) {
    F32x16 sum[R][kWide];
    for (int r = 0; r < R; ++r)
      for (int w = 0; w < kWide; ++w) sum[r][w] = zero();
    for (int64_t d = 0; d < k_dim; ++d) {
      F32x16 k[kWide];
      for (int w = 0; w < kWide; ++w) k[w] = widen(tile.k[part + w] + d * 16);
      for (int w = 0; w < kWide; ++w) tile.touch_k(part + w, d * 16);
      for (int r = 0; r < R; ++r) {
        const F32x16 x = set1(q[d * R + r]);
        for (int w = 0; w < kWide; ++w) sum[r][w] = fma(x, k[w], sum[r][w]);
      }
    }
    for (int r = 0; r < R; ++r)
      for (int w = 0; w < kWide; ++w) store(scores + r * kTile + (part + w) * 16, sum[r][w]);
  }
}

// acc[r] = acc[r] * factor[r] + sum over positions [from, to) of p[r] * v, W vectors of it.
template <int R, int W, class Tile>
void mix_columns(const float* p, const float* factor, const Tile& tile, int64_t from, int64_t to, int64_t column,
                 float* acc, int64_t stride) {
  F32x16 sum[R][W];
  for (int r = 0; r < R; ++r)
    for (int w = 0; w < W; ++w) sum[r][w] = mul(load(acc + r * stride + column + w * 16), set1(factor[r]));
  while (from < to) {
    const int64_t part = from / 16, stop = to < (part + 1) * 16 ? to : (part + 1) * 16;
    int64_t at = (from % 16) * tile.v_stride + column;
    for (; from < stop; ++from, at += tile.v_stride) {
      F32x16 v[W];
      for (int w = 0; w < W; ++w) v[w] = widen(tile.v[part] + at + w * 16);
      for (int w = 0; w < W; w += 4 / static_cast<int>(sizeof(typename Tile::Element))) tile.touch_v(part, at + w * 16);
      for (int r = 0; r < R; ++r) {
        const F32x16 x = set1(p[r * kTile + from]);
        for (int w = 0; w < W; ++w) sum[r][w] = fma(x, v[w], sum[r][w]);
      }
    }
  }
  for (int r = 0; r < R; ++r)
    for (int w = 0; w < W; ++w) store(acc + r * stride + column + w * 16, sum[r][w]);
}

template <int R, class Tile>
void mix_rows(const float* p, const float* factor, const Tile& tile, int64_t from, int64_t to, int64_t v_padded,
              float* acc, int64_t stride) {
  int64_t column = 0;
  for (; column + 16 * kWide <= v_padded; column += 16 * kWide)
    mix_columns<R, kWide>(p, factor, tile, from, to, column, acc, stride);
  for (; column < v_padded; column += 16) mix_columns<R, 1>(p, factor, tile, from, to, column, acc, stride);
}

// Calls f with the row count as a constant: kernels are instantiated for 1..kRowTile rows.
template <int R = kRowTile, class F>
FW_INLINE void with_rows(int64_t rows, F&& f) {
  if constexpr (R == 1) {
    f(std::integral_constant<int, 1>{});
  } else if (rows == R) {
    f(std::integral_constant<int, R>{});
  } else {
    with_rows<R - 1>(rows, f);
  }
}

alignas(64) constexpr float kCount[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
constexpr float kOne[1] = {1.0f};

// Scores of one row -> exp(score - new maximum), 0 beyond `seen`; returns the old maximum minus the new one.
float softmax_row(float* scores, float scale, int64_t seen, float* record) {
  const F32x16 low = set1(-INFINITY), limit = set1(static_cast<float>(seen));
  F32x16 p[kParts], top = low;
  for (int i = 0; i < kParts; ++i) {
    const F32x16 position = add(load(kCount), set1(static_cast<float>(16 * i)));
    p[i] = select_gt(limit, position, mul(load(scores + 16 * i), set1(scale)), low);
    top = max(p[i], top);
  }
  const float before = record[0], here = hmax(top), now = here > before ? here : before;
  for (int i = 0; i < kParts; ++i) store(scores + 16 * i, exp(sub(p[i], set1(now))));
  record[0] = now;
  return before - now;
}

// into := into and part as one softmax.  The order of calls is the order of splits.
void fold(float* into, const float* part, int64_t floats) {
  const float now = part[0] > into[0] ? part[0] : into[0];
  const F32x16 a = exp(set1(into[0] - now)), b = exp(set1(part[0] - now));
  into[0] = now;
  for (int64_t i = 16; i < floats; i += 16) store(into + i, fma(load(into + i), a, mul(load(part + i), b)));
}

void finish(float* out, const float* record, int64_t v_dim) {
  const F32x16 total = set1(hsum(load(record + 16)));
  for (int64_t i = 0; i < v_dim; i += 16) {
    const int n = static_cast<int>(v_dim - i < 16 ? v_dim - i : 16);
    store_tail(out + i, div(load(record + 32 + i), total), n);
  }
}

// One worker computing one item.  Rows are (token, query head of the group), token by token, so positions ascend.
template <class T>
class Worker {
 public:
  Worker(const AttendArgs& args, const AttendItem& item, float* scratch)
      : a_(args), item_(item), group_(args.heads / args.kv.heads), rows_(item.count * group_),
        tiles_((rows_ + kRowTile - 1) / kRowTile), tile_rows_((rows_ + tiles_ - 1) / tiles_),
        v_padded_(padded(args.kv.v_dim)), stride_(record_floats(args.kv.v_dim)) {
    const int64_t room = item_rows(group_);
    k_ = scratch;
    v_ = k_ + kTile * a_.kv.k_dim;
    q_ = v_ + kTile * v_padded_;
    scores_ = q_ + padded(room * a_.kv.k_dim);
    factor_ = scores_ + room * kTile;
    running_ = factor_ + padded(room);
    folded_ = running_ + room * stride_;
  }

  void run(float* records) {
    pack_q();
    for (int64_t split = item_.first; split < item_.last; ++split) {
      float* into = records ? records + (item_.record + split * rows_) * stride_ : running_;
      run_split(split, into);
      if (!records) fold_split(split);
    }
    if (records) return;
    for (int64_t r = 0; r < rows_; ++r) finish(out_row(r), folded_ + r * stride_, a_.kv.v_dim);
  }

 private:
  int64_t position(int64_t row) const { return a_.positions[item_.token + row / group_]; }
  float* out_row(int64_t r) const {
    const int64_t head = item_.head * group_ + r % group_;
    return a_.out + ((item_.token + r / group_) * a_.heads + head) * a_.kv.v_dim;
  }
  int64_t rows_in(int64_t first) const { return rows_ - first < tile_rows_ ? rows_ - first : tile_rows_; }

  // q of each register tile of rows as [k_dim][rows in it]: the broadcasts of one d are adjacent.
  void pack_q() {
    for (int64_t first = 0; first < rows_; first += tile_rows_) {
      const int64_t n = rows_in(first), k_dim = a_.kv.k_dim;
      for (int64_t r = first; r < first + n; ++r) {
        const float* q = a_.q + ((item_.token + r / group_) * a_.heads + item_.head * group_ + r % group_) * k_dim;
        for (int64_t d = 0; d < k_dim; ++d) q_[first * k_dim + d * n + r - first] = q[d];
      }
    }
  }

  void run_split(int64_t split, float* records) {
    const int64_t start = split * kSplit, last = position(rows_ - 1);
    int64_t row = 0;
    while (position(row) < start) ++row;
    for (int64_t r = row; r < rows_; ++r) {
      float* record = records + r * stride_;
      record[0] = -INFINITY;
      for (int64_t i = 16; i < stride_; i += 16) store(record + i, zero());
    }
    for (int64_t at = start; at < start + kSplit && at <= last; at += kTile) {
      while (position(row) < at) ++row;
      run_tile(at, last + 1 - at < kTile ? last + 1 - at : kTile, row, records);
    }
  }

  void fold_split(int64_t split) {
    for (int64_t r = 0; r < rows_; ++r) {
      if (position(r) < split * kSplit) continue;
      float* into = folded_ + r * stride_;
      if (split > 0) {
        fold(into, running_ + r * stride_, stride_);
      } else {
        for (int64_t i = 0; i < stride_; i += 16) store(into + i, load(running_ + r * stride_ + i));
      }
    }
  }

  // Rows [row, rows) against positions [at, at + seen).
  void run_tile(int64_t at, int64_t seen, int64_t row, float* records) {
    if (a_.kv.lanes() == 1) {
      gather(at, seen);
      compute(widened(), at, row, records);
      return;
    }
    if (tiles_ > 2 && !std::is_same_v<T, float>) {  // from the third use on, widening once is cheaper than every time
      widen_tile(stored(at, seen), seen);
      compute(widened(), at, row, records);
      return;
    }
    compute(stored(at, seen), at, row, records);
  }

  StoredTile<T> stored(int64_t at, int64_t seen) {
    StoredTile<T> tile;
    static_cast<Parts<T>&>(tile) = at == ahead_at_ ? ahead_ : locate(at, seen);
    const int64_t left = position(rows_ - 1) + 1 - at - kTile;
    if (left > 0) {
      ahead_at_ = at + kTile;
      ahead_ = locate(ahead_at_, left);
      tile.next = ahead_;
    } else {
      tile.next = tile;
    }
    tile.v_stride = a_.kv.v_dim;
    return tile;
  }

  Parts<T> locate(int64_t at, int64_t seen) const {
    const KVView& kv = a_.kv;
    const auto block = static_cast<uint32_t>(kv.block);
    const int32_t* table = a_.tables + item_.sequence * a_.table_width;
    Parts<T> parts;
    for (int part = 0; part < kParts; ++part) {
      const auto position = static_cast<uint32_t>(part * 16 < seen ? at + part * 16 : at);
      const int64_t row = (table[position / block] * kv.heads + item_.head) * kv.block + position % block;
      parts.k[part] = static_cast<const T*>(kv.k) + row * kv.k_dim;
      parts.v[part] = static_cast<const T*>(kv.v) + row * kv.v_dim;
    }
    return parts;
  }

  WidenedTile widened() const {
    WidenedTile tile;
    tile.v_stride = v_padded_;
    for (int part = 0; part < kParts; ++part) {
      tile.k[part] = k_ + part * 16 * a_.kv.k_dim;
      tile.v[part] = v_ + part * 16 * v_padded_;
    }
    return tile;
  }

  void widen_tile(const StoredTile<T>& tile, int64_t seen) {
    const int64_t floats = 16 * a_.kv.k_dim;
    for (int part = 0; part * 16 < seen; ++part) {
      for (int64_t i = 0; i < floats; i += 16) {
        store(k_ + part * floats + i, widen(tile.k[part] + i));
        tile.touch_k(part, i);
      }
    }
    for (int64_t j = 0; j < seen; ++j) {
      const int64_t at = (j % 16) * tile.v_stride;
      widen_row(v_ + j * v_padded_, tile.v[j / 16] + at, v_padded_);
      for (int64_t i = 0; i < tile.v_stride; i += 32) tile.touch_v(j / 16, at + i);
    }
  }

  static void widen_row(float* to, const T* from, int64_t n) {
    for (int64_t i = 0; i < n; i += 16) store(to + i, widen(from + i));
  }

  // For block sizes 16 does not divide: builds the widened tile position by position.
  void gather(int64_t at, int64_t seen) {
    alignas(64) float row[kMaxHead + 16];
    const KVView& kv = a_.kv;
    for (int64_t j = 0; j < seen; ++j) {
      const int64_t block = a_.tables[item_.sequence * a_.table_width + (at + j) / kv.block];
      const int64_t slot = block * kv.block + (at + j) % kv.block;
      widen_row(row, static_cast<const T*>(kv.k) + kv.k_index(slot, item_.head), padded(kv.k_dim));
      float* to = k_ + j / 16 * 16 * kv.k_dim + j % 16;
      for (int64_t d = 0; d < kv.k_dim; ++d) to[d * 16] = row[d];
      widen_row(v_ + j * v_padded_, static_cast<const T*>(kv.v) + kv.v_index(slot, item_.head), v_padded_);
    }
  }

  int64_t seen_by(int64_t row, int64_t at) const {
    const int64_t n = position(row) + 1 - at;
    return n < 0 ? 0 : n < kTile ? n : kTile;
  }

  template <class Tile>
  void compute(const Tile& tile, int64_t at, int64_t row, float* records) {
    const int64_t begin = row / tile_rows_ * tile_rows_;
    for (int64_t first = begin; first < rows_; first += tile_rows_) {
      const float* q = q_ + first * a_.kv.k_dim;
      with_rows(rows_in(first), [&](auto n) { score_rows<n.value>(q, tile, a_.kv.k_dim, scores_ + first * kTile); });
    }
    softmax(at, row, records);
    for (int64_t first = begin; first < rows_; first += tile_rows_) mix(tile, at, first, row, records);
  }

  void softmax(int64_t at, int64_t row, float* records) {
    for (int64_t r = row; r < rows_; ++r)
      factor_[r] = softmax_row(scores_ + r * kTile, a_.scale, seen_by(r, at), records + r * stride_);
    for (int64_t r = row / 16 * 16; r < rows_; r += 16) store(factor_ + r, exp(load(factor_ + r)));
    for (int64_t r = row; r < rows_; ++r) {
      const float* p = scores_ + r * kTile;
      F32x16 sum = load(p);
      for (int i = 1; i < kParts; ++i) sum = add(sum, load(p + 16 * i));
      float* total = records + r * stride_ + 16;
      store(total, fma(load(total), set1(factor_[r]), sum));
    }
  }

  // Positions every row of the register tile sees go together; what later rows see beyond that, row by row.
  template <class Tile>
  void mix(const Tile& tile, int64_t at, int64_t first, int64_t row, float* records) {
    const int64_t rows = rows_in(first), shared = first < row ? 0 : seen_by(first, at);
    float* acc = records + first * stride_ + 32;
    if (shared > 0) {
      with_rows(rows, [&](auto n) {
        mix_rows<n.value>(scores_ + first * kTile, factor_ + first, tile, 0, shared, v_padded_, acc, stride_);
      });
    }
    for (int64_t r = first < row ? row : first; r < first + rows; ++r) {
      const int64_t seen = seen_by(r, at);
      const float* factor = shared > 0 ? kOne : factor_ + r;
      float* own = records + r * stride_ + 32;
      if (seen > shared) mix_rows<1>(scores_ + r * kTile, factor, tile, shared, seen, v_padded_, own, stride_);
    }
  }

  const AttendArgs& a_;
  const AttendItem& item_;
  int64_t group_, rows_, tiles_, tile_rows_, v_padded_, stride_;
  float *k_, *v_, *q_, *scores_, *factor_, *running_, *folded_;
  Parts<T> ahead_;  // of the tile at ahead_at_
  int64_t ahead_at_ = -1;
};

void merge(const AttendArgs& a, const AttendMerge& m, float* records) {
  const int64_t group = a.heads / a.kv.heads, rows = m.count * group, stride = record_floats(a.kv.v_dim);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t token = m.token + r / group, splits = a.positions[token] / kSplit + 1;
    float* into = records + (m.record + r) * stride;
    for (int64_t split = 1; split < splits; ++split) fold(into, into + split * rows * stride, stride);
    finish(a.out + (token * a.heads + m.head * group + r % group) * a.kv.v_dim, into, a.kv.v_dim);
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
