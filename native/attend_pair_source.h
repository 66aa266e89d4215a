// Where a tile's pairs of bf16 come from: the cache's own memory, or V in scratch.  Included by attention.cpp.
//
// Invariant: V of a position that no row at work sees is zero: its weights are, and zero times anything stored there
// must be zero.  Parts that no query sees are not brought here: one product of zeros replaces theirs, which changes a sum
// as all of them would.  Table entries outside a span's positions are not read.
#pragma once

#include "attend_rows.h"
#include "attend_tile.h"

namespace flyweight::FW_ISA {

// K as four [k_dim/2][16][2] parts, V as four [8][v_stride] parts, a row the pairs of two positions.
struct PairTile {
  const uint16_t* k[kParts];
  const uint16_t* v[kParts];
  const uint16_t* next_k[kParts];
  const uint16_t* next_v[kParts];
  int64_t v_stride;
  // How far apart lines of the next tile are prefetched, in 16-bit words: for a vector of K or V, for a row of V.
  int64_t next_vector, next_row;
  bool used[kParts];  // whether a query sees some of a part
  bool ahead;         // whether there is a next tile
  bool in_place;      // whether V stays where it is: in the cache's own memory

  FW_INLINE static void touch(const uint16_t* p) { __builtin_prefetch(p, 0, 2); }
};

// A pair of positions of V out of K's last elements.
inline void turn_pair(const KVView& kv, const uint16_t* k, int64_t pair, uint32_t mask, uint16_t* to) {
  const uint16_t* from = k + 16 * (kv.k_dim - kv.v_dim) + 4 * pair;
  for (int64_t d = 0; d < kv.v_dim; d += 2, from += 32, to += 4) {
    uint32_t a, b;  // elements d and d + 1 of the first position, of the second
    std::memcpy(&a, from, 4);
    std::memcpy(&b, from + 2, 4);
    const uint32_t out[2] = {((a & 0xFFFF) | b << 16) & mask, (a >> 16 | (b & 0xFFFF0000)) & mask};
    std::memcpy(to, out, 8);
  }
}

class PairSource {
 public:
  // `v` has room for kTile positions, padded.  `whole`: V's parts must lie side by side two and two.
  PairSource(const AttendArgs& args, const AttendItem& item, uint16_t* v, bool whole)
      : args_(args), kv_(args.kv), item_(item), v_(v),
        side_(whole ? 2 : 1), always_(kv_.v_in_k || (whole && kv_.block % 32 != 0)) {}

  // The tile in the cache; `next` is the tile after it, to be touched ahead.
  PairTile stored(const Span& s, const Next& next) const {
    PairTile tile;
    locate(item_, s, tile.k, tile.v);
    for (int part = 0; part < kParts; ++part) {
      tile.next_k[part] = tile.k[part], tile.next_v[part] = tile.v[part];
      tile.used[part] = seen(part, s.from, s.to);
    }
    tile.ahead = next.seen();
    tile.in_place = true;
    if (tile.ahead) locate(*next.item, next.span, tile.next_k, tile.next_v);
    tile.v_stride = tile.next_row = 2 * kv_.v_dim;
    tile.next_vector = 32;
    return tile;
  }

  // The tile with V as rows see it that see positions [from, to).
  PairTile settled(const PairTile& stored, int64_t from, int64_t to) const {
    if (from == 0 && to == kTile && !always_) return stored;
    PairTile tile = stored;
    tile.in_place = false;
    for (int part = 0; part < kParts; ++part) tile.used[part] = seen(part, from, to);
    for (int part = 0; part < kParts; part += side_) {
      const int64_t begin = 16 * part, end = begin + 16 * side_;
      if (begin >= to || end <= from || (begin >= from && end <= to && !always_)) continue;
      for (int i = part; i < part + side_; ++i) settle(tile, i, from, to);
    }
    return tile;
  }

  // Whether V is finite at the pairs that hold positions [from, to).
  bool finite(const PairTile& tile, int64_t from, int64_t to) const {
    uint32_t good = 0xFFFF;
    const F32x16 limit = set1(INFINITY);
    for (int64_t pair = from / 2; 2 * pair < to; ++pair) {
      const uint16_t* row = tile.v[pair / 8] + pair % 8 * tile.v_stride;
      for (int64_t i = 0; i < kv_.v_dim; i += 16) {
        const I32x16 both = words(row, i, kv_.v_dim);
        good &= mask_gt(limit, abs(as_f32(both))) & mask_gt(limit, abs(as_f32(shl<16>(both))));
      }
    }
    return good == 0xFFFF;
  }

 private:
  static bool seen(int part, int64_t from, int64_t to) { return 16 * part < to && 16 * part + 16 > from; }

  // Brings a part's V to scratch.  Rows are as far apart there as in the cache: what one has too much, the next one
  // covers.
  void settle(PairTile& tile, int part, int64_t from, int64_t to) const {
    const uint16_t* v = tile.v[part];
    tile.v[part] = v_ + 8 * part * tile.v_stride;
    for (int64_t pair = 0, at = 16 * part; pair < 8; ++pair, at += 2) {
      const uint32_t low = at >= from && at < to ? 0xFFFF : 0, high = at + 1 >= from && at + 1 < to ? 0xFFFF0000 : 0;
      uint16_t* row = v_ + (8 * part + pair) * tile.v_stride;
      if (kv_.v_in_k) {
        turn_pair(kv_, tile.k[part], pair, low | high, row);
      } else {
        keep(v + pair * tile.v_stride, low | high, row);
      }
    }
  }

  // 16 pairs from `i` on, zero from `n` on.
  static I32x16 words(const uint16_t* row, int64_t i, int64_t n) {
    const auto* from = reinterpret_cast<const int32_t*>(row) + i;
    if (i + 16 <= n) return iload(from);
    int32_t lane[16] = {};
    std::memcpy(lane, from, static_cast<size_t>(n - i) * sizeof(int32_t));
    return iload(lane);
  }

  void keep(const uint16_t* from, uint32_t mask, uint16_t* to) const {
    const I32x16 kept = iset1(static_cast<int32_t>(mask));
    auto* into = reinterpret_cast<int32_t*>(to);
    for (int64_t i = 0; i < kv_.v_dim; i += 16)
      istore(into + i, mask == 0 ? izero() : and_(words(from, i, kv_.v_dim), kept));
  }

  // Parts that no query sees repeat the first that a query sees.
  void locate(const AttendItem& item, const Span& s, const uint16_t** k, const uint16_t** v) const {
    const int32_t* table = args_.tables + item.sequence * args_.table_width;
    const auto block = static_cast<uint32_t>(kv_.block);
    for (int part = 0; part < kParts; ++part) {
      const auto position = static_cast<uint32_t>(s.at + (seen(part, s.from, s.to) ? part * 16 : s.from / 16 * 16));
      const int64_t row = (table[position / block] * kv_.heads + item.head) * kv_.block + position % block;
      k[part] = static_cast<const uint16_t*>(kv_.k) + row * kv_.k_dim;
      v[part] = kv_.v_in_k ? k[part] : static_cast<const uint16_t*>(kv_.v) + row * kv_.v_dim;
    }
  }

  const AttendArgs& args_;
  const KVView& kv_;
  const AttendItem& item_;
  uint16_t* v_;
  int side_;     // parts of V that must lie side by side
  bool always_;  // V is never used in place
};

}  // namespace flyweight::FW_ISA
