// Where a work item's tiles come from: the cache's own memory, or 64 positions of it widened to float in scratch.
// Included by attention.cpp.
//
// Invariant: widening and transposing move values, exactly.  Nothing outside a span's positions is ever used, though
// vector loads may touch such slots of a block; table entries outside it are not even read.
#pragma once

#include "attend_rows.h"
#include "attend_tile.h"
#include "kernels_attention.h"

namespace flyweight::FW_ISA {

// 16 x 16 floats: to[j * stride + i] = from[16 * i + j].
inline void transpose(const float* from, float* to, int64_t stride) {
  for (int64_t j = 0; j < 16; ++j)
    for (int64_t i = 0; i < 16; ++i) to[j * stride + i] = from[16 * i + j];
}

template <class T>
class TileSource {
 public:
  // `k` and `v` have room for kTile positions.
  TileSource(const AttendArgs& args, const AttendItem& item, float* k, float* v)
      : kv_(args.kv), table_(args.tables + item.sequence * args.table_width), head_(item.head), k_(k), v_(v),
        v_padded_(padded(args.kv.v_dim)) {}

  // The tile in the cache itself; `next` is the tile after it, to be touched ahead.
  StoredTile<T> stored(const Span& s, const Span& next) {
    StoredTile<T> tile;
    static_cast<Parts<T>&>(tile) = s.at == ahead_at_ ? ahead_ : locate(s);
    tile.next = tile;
    if (next.seen()) {
      ahead_at_ = next.at;
      tile.next = ahead_ = locate(next);
    }
    tile.v_stride = kv_.v_dim;
    return tile;
  }

  // What widen or gather left in scratch.
  WidenedTile widened() const {
    WidenedTile tile;
    tile.v_stride = v_padded_;
    for (int part = 0; part < kParts; ++part) {
      tile.k[part] = k_ + part * 16 * kv_.k_dim;
      tile.v[part] = v_ + part * 16 * v_padded_;
    }
    return tile;
  }

  void widen(const Span& s, const Span& next) {
    const StoredTile<T> tile = stored(s, next);
    const int64_t floats = 16 * kv_.k_dim;
    for (int64_t part = s.from / 16; part * 16 < s.to; ++part) {
      for (int64_t i = 0; i < floats; i += 16) {
        store(k_ + part * floats + i, FW_ISA::widen(tile.k[part] + i));
        tile.touch_k(static_cast<int>(part), i);
      }
      if (kv_.v_in_k) turn(k_ + (part + 1) * floats - 16 * kv_.v_dim, v_ + part * 16 * v_padded_);
    }
    if (kv_.v_in_k) return;
    for (int64_t j = s.from; j < s.to; ++j) {
      const int64_t at = (j % 16) * tile.v_stride;
      widen_row(v_ + j * v_padded_, tile.v[j / 16] + at, v_padded_);
      for (int64_t i = 0; i < tile.v_stride; i += 32) tile.touch_v(j / 16, at + i);
    }
  }

  // For block sizes 16 does not divide: builds the widened tile position by position.
  void gather(const Span& s) {
    alignas(64) float row[kMaxHead + 16];
    for (int64_t j = s.from; j < s.to; ++j) {
      const int64_t position = s.at + j, slot = table_[position / kv_.block] * kv_.block + position % kv_.block;
      const T* k = static_cast<const T*>(kv_.k) + kv_.k_index(slot, head_);
      widen_row(row, k, padded(kv_.k_dim));
      float* to = k_ + j / 16 * 16 * kv_.k_dim + j % 16;
      for (int64_t d = 0; d < kv_.k_dim; ++d) to[d * 16] = row[d];
      const T* v = kv_.v_in_k ? k + kv_.k_dim - kv_.v_dim : static_cast<const T*>(kv_.v) + kv_.v_index(slot, head_);
      widen_row(v_ + j * v_padded_, v, v_padded_);
    }
  }

 private:
  // Parts that no query sees repeat the first that a query sees.
  Parts<T> locate(const Span& s) const {
    const auto block = static_cast<uint32_t>(kv_.block);
    Parts<T> parts;
    for (int part = 0; part < kParts; ++part) {
      const bool seen = part * 16 < s.to && part * 16 + 16 > s.from;
      const auto position = static_cast<uint32_t>(s.at + (seen ? part * 16 : s.from / 16 * 16));
      const int64_t row = (table_[position / block] * kv_.heads + head_) * kv_.block + position % block;
      parts.k[part] = static_cast<const T*>(kv_.k) + row * kv_.k_dim;
      parts.v[part] = kv_.v_in_k ? parts.k[part] : static_cast<const T*>(kv_.v) + row * kv_.v_dim;
    }
    return parts;
  }

  static void widen_row(float* to, const T* from, int64_t n) {
    for (int64_t i = 0; i < n; i += 16) store(to + i, FW_ISA::widen(from + i));
  }

  // V of 16 positions out of K's last elements, [v_dim][16] -> [16][v_padded].
  void turn(const float* from, float* to) const {
    int64_t d = 0;
    for (; d + 16 <= kv_.v_dim; d += 16) transpose(from + d * 16, to + d, v_padded_);
    for (; d < kv_.v_dim; ++d)
      for (int64_t j = 0; j < 16; ++j) to[j * v_padded_ + d] = from[d * 16 + j];
  }

  const KVView& kv_;
  const int32_t* table_;
  int64_t head_;
  float *k_, *v_;
  int64_t v_padded_;
  Parts<T> ahead_;  // of the tile at ahead_at_
  int64_t ahead_at_ = -1;
};

}  // namespace flyweight::FW_ISA
