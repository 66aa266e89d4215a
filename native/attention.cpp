// Paged, ragged, grouped-query attention with an online softmax (Milakov and Gimelshein, 2018; Dao et al., 2022).
//
// Invariant: one canonical order per query row.  A tile of 64 positions updates the running maximum, the partial sums
// and the weighted V; a split of 512 positions is a softmax of its own; splits are folded in ascending order.  Tiles and
// splits lie at fixed positions of the context, and a row starts at the first that holds a position it sees: a window or
// a chunk is part of the row, never of the item.  Grouping rows, sharing tiles between sequences, leaving a softmax in records for
// another item or computing splits apart repeats exactly these operations, so a row's bits depend on its q and the K/V
// it sees, on nothing else.
#include <atomic>
#include <utility>

#include "attend_codes.h"
#include "attend_dots.h"
#include "attend_floats.h"
#include "attend_rows.h"
#include "attend_softmax.h"
#include "kernels_attention.h"
#include "simd.h"
#if defined(FW_ISA_AMX)
#include "attend_amx.h"
#endif

namespace flyweight::FW_ISA {
namespace {

float sink_of(const AttendArgs& a, int64_t head) { return a.sinks == nullptr ? -INFINITY : a.sinks[head]; }

void copy(float* to, const float* from, int64_t floats) {
  for (int64_t i = 0; i < floats; i += 16) store(to + i, load(from + i));
}

// The items of one round, handed out one by one.  A worker takes its next one before it is done with the last tile of
// the one before, to prefetch its K and V.
class Queue {
 public:
  Queue(const AttendWork& work, int64_t first, int64_t last) : work_(work), at_(first), last_(last) {}

  const AttendItem* take() {
    const int64_t i = at_.fetch_add(1, std::memory_order_relaxed);
    return i < last_ ? work_.items + i : nullptr;
  }

 private:
  const AttendWork& work_;
  std::atomic<int64_t> at_;
  int64_t last_;
};

// One worker computing one item.  `running` is the softmax of the split at work, `folded` that of the splits before it.
template <class Tiles>
class Worker {
 public:
  Worker(const AttendArgs& args, const AttendWork& work, const AttendItem& item, float* scratch, float* records)
      : a_(args), work_(work), item_(item), stride_(record_floats(args.kv.v_dim)), records_(records), running_(scratch),
        folded_(running_ + room() * stride_),
        rows_(args, work, item, reinterpret_cast<int32_t*>(folded_ + room() * stride_)),
        tiles_(args, item, rows_, folded_ + room() * stride_ + room()) {}

  // Returns the item that this worker computes next, or null.
  const AttendItem* run(Queue& queue) {
    if (item_.resumes) restore_folded();
    for (int64_t start = item_.first / kSplit * kSplit; start < item_.last; start += kSplit) {
      run_split(start, queue);
      if (item_.record < 0 || start + kSplit <= item_.last) fold_split(start);
    }
    if (item_.record >= 0) {
      save();
    } else {
      for (int64_t r = 0; r < rows_.count(); ++r)
        finish(rows_.out(r), folded_ + r * stride_, a_.kv.v_dim, sink_of(a_, rows_.head(r)));
    }
    return taken_ ? follower_ : queue.take();
  }

 private:
  // Rows of padding are written too: what follows a worker's records must not lie there.
  int64_t room() const { return padded(item_rows(a_.heads / a_.kv.heads)); }
  float* record(int64_t row, int64_t i) const { return records_ + rows_.record(row, i) * stride_; }

  // The split this item's part of a row starts with.
  int64_t own_split(int64_t row) const {
    const int64_t first = rows_.first(row);
    return (item_.resumes || first > item_.first ? first : item_.first) / kSplit * kSplit;
  }

  void run_split(int64_t start, Queue& queue) {
    int64_t row = 0;
    while (row < rows_.count() && rows_.position(row) < start) ++row;
    if (row == rows_.count()) return;
    const int64_t seen = rows_.first(row) / kTile * kTile, least = start > item_.first ? start : item_.first;
    const int64_t end = start + kSplit < item_.last ? start + kSplit : item_.last;
    const int64_t last = rows_.position(rows_.count() - 1);
    Span now = rows_.span(seen > least ? seen : least, {});
    now.starts = begin_rows(start, row, now);
    while (now.at < end && now.at <= last) {
      const Span next = rows_.span(now.at + kTile, now);
      if (now.seen()) tiles_.run(now, after(next, queue), running_);
      now = next;
    }
    tiles_.finish(running_);
  }

  // Makes the records of rows from `row` on ready for a split, whose first tile is `first`.  Returns whether that tile
  // is the first of each of them: then it starts their weighted V, and nothing is written here that it would only read.
  bool begin_rows(int64_t start, int64_t row, const Span& first) {
    const int64_t count = rows_.count();
    const bool resumed = item_.resumes && start < item_.first;
    const bool together = Tiles::kStarts && !resumed && first.row == row && first.end == count;
    for (int64_t r = row; r < count && rows_.first(r) < start + kSplit; ++r) {
      if (resumed && rows_.first(r) < item_.first) {
        copy(running_ + r * stride_, record(r, 1), stride_);
      } else {
        clear(running_ + r * stride_, together ? 32 : stride_);
      }
    }
    return together;
  }

  // What to prefetch during the tile before `next`.
  Next after(const Span& next, Queue& queue) {
    // Beyond the item's end, rows may see blocks that its table does not have.
    if (next.seen() && next.at < item_.last) return {&item_, next};
    if (!taken_) follower_ = queue.take();
    taken_ = true;
    return follower_ == nullptr ? Next{} : first_tile(a_, work_, *follower_);
  }

  void fold_split(int64_t start) {
    const int64_t end = rows_.count() - 1;
    if (own_split(0) == start && own_split(end) == start && rows_.position(0) >= start)  // the first of every row
      return std::swap(folded_, running_);
    for (int64_t r = 0; r < rows_.count(); ++r) {
      const int64_t own = own_split(r);
      if (start < own || rows_.position(r) < start) continue;
      float* into = folded_ + r * stride_;
      if (start > own) {
        fold(into, running_ + r * stride_, stride_);
      } else {
        copy(into, running_ + r * stride_, stride_);
      }
    }
  }

  void restore_folded() {
    for (int64_t r = 0; r < rows_.count(); ++r)
      if (own_split(r) + kSplit <= item_.first) copy(folded_ + r * stride_, record(r, 0), stride_);
  }

  void save() {
    const int64_t whole = item_.last / kSplit * kSplit;  // splits before it are folded
    for (int64_t r = 0; r < rows_.count(); ++r) {
      if (rows_.position(r) < item_.first) continue;
      if (own_split(r) < whole) copy(record(r, item_.record), folded_ + r * stride_, stride_);
      if (whole < item_.last && rows_.first(r) < item_.last)
        copy(record(r, item_.record + 1), running_ + r * stride_, stride_);
    }
  }

  const AttendArgs& a_;
  const AttendWork& work_;
  const AttendItem& item_;
  const AttendItem* follower_ = nullptr;
  bool taken_ = false;  // the follower is known
  int64_t stride_;
  float *records_, *running_, *folded_;
  Rows rows_;
  Tiles tiles_;
};

void merge(const AttendArgs& a, const AttendWork& work, const AttendMerge& m, float* records) {
  const int64_t group = a.heads / a.kv.heads, stride = record_floats(a.kv.v_dim);
  for (int64_t i = 0; i < m.count * group; ++i) {
    const int64_t token = work.order[m.token + i / group], head = m.head * group + i % group;
    const int64_t position = a.positions[token], first = first_seen(position, a.sight) / kSplit;
    const auto record = [&](int64_t split) { return records + (work.tokens[token] + split * a.heads + head) * stride; };
    float* into = record(first);
    for (int64_t split = first + 1; split <= position / kSplit; ++split) fold(into, record(split), stride);
    finish(a.out + (token * a.heads + head) * a.kv.v_dim, into, a.kv.v_dim, sink_of(a, head));
  }
}

template <class Tiles>
void run_items(const AttendArgs& a, const AttendWork& work, Queue& queue, float* own, float* records) {
  for (const AttendItem* item = queue.take(); item != nullptr;)
    item = Worker<Tiles>(a, work, *item, own, records).run(queue);
}

template <KVType type>
void run_codes(const AttendArgs& a, const AttendWork& work, Queue& queue, float* own, float* records) {
#if defined(FW_ISA_AMX)
  if (AmxMath::fits(a.kv)) return run_items<CodeTiles<type, AmxMath>>(a, work, queue, own, records);
#endif
  return run_items<CodeTiles<type, DotMath>>(a, work, queue, own, records);
}

void run_queue(const AttendArgs& a, const AttendWork& work, Queue& queue, float* own, float* records) {
#if defined(FW_ISA_AMX)
  if (a.kv.paired && AmxMath::fits(a.kv)) return run_items<PairTiles<AmxMath>>(a, work, queue, own, records);
#endif
  if (a.kv.paired) return run_items<PairTiles<DotMath>>(a, work, queue, own, records);
  switch (a.kv.type) {
    case KVType::f16: return run_items<FloatTiles<Half>>(a, work, queue, own, records);
    case KVType::bf16: return run_items<FloatTiles<Brain>>(a, work, queue, own, records);
    case KVType::f32: return run_items<FloatTiles<float>>(a, work, queue, own, records);
    case KVType::int8: return run_codes<KVType::int8>(a, work, queue, own, records);
    case KVType::int4: return run_codes<KVType::int4>(a, work, queue, own, records);
    case KVType::e4m3: return run_codes<KVType::e4m3>(a, work, queue, own, records);
    case KVType::e5m2: return run_codes<KVType::e5m2>(a, work, queue, own, records);
  }
}

void attend(Pool& pool, const AttendArgs& a, const AttendWork& work, float* scratch) {
  const int64_t each = worker_floats(a.heads / a.kv.heads, a.kv);
  float* records = scratch + each * pool.threads();
  const auto round = [&](int64_t first, int64_t last) {
    Queue queue(work, first, last);
    const int64_t workers = last - first < pool.threads() ? last - first : pool.threads();
    pool.run(workers, [&](int64_t, int worker) { run_queue(a, work, queue, scratch + each * worker, records); });
  };
  round(0, work.early);
  round(work.early, work.item_count);
  if (work.merge_count == 0) return;
  pool.run(work.merge_count, [&](int64_t chunk, int) { merge(a, work, work.merges[chunk], records); });
}

}  // namespace

void rope_store(Pool& pool, const RopeStoreArgs& args);  // rope_store.cpp
void rope_store_share(const RopeStoreArgs& args, const HeadShare& share);
void move_kv(Pool& pool, const KVView& kv, const int32_t* src, const int32_t* dst, int64_t count, void* scratch);

extern const AttentionKernels attention_kernels;
const AttentionKernels attention_kernels = {rope_store, rope_store_share, attend, move_kv};

}  // namespace flyweight::FW_ISA
