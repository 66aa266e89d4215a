// One layer's K and V as the attention kernels see it, and the sizes those kernels work in.
//
// Layout.  K is [blocks, heads, block/lanes, k_dim, lanes]: `lanes` neighbouring positions lie side by side, so a
// vector load brings one element of 16 positions and a score needs no horizontal sum.  V is [blocks, heads, block,
// v_dim].  lanes = 16 where 16 divides the block size, else 1.  Both arrays end in 64 spare bytes that vector loads may
// touch.  With `paired`, for products of bf16 in pairs: K is [blocks, heads, block/16, k_dim/2, 16, 2], pairs of elements,
// and V is [blocks, heads, block/2, v_dim, 2], pairs of positions.  With `v_in_k` (multi-head latent attention) there is no V: it is the last v_dim elements of K.
//
// Codes (int8, int4, e4m3, e5m2) are stored in parts of 16 positions of one head, [blocks, heads, block/16] parts, each
// its codes and then 16 float scales, one a position.  Codes of 8 bits lie as bf16 in pairs does.  Codes of 4 bits: for 8
// elements of K, 16 words a position's two 16-bit halves, half h with elements h, h + 2, h + 4, h + 6 from its lowest
// bits on; for 64 elements of V at two positions, 16 words of two halves, half h with elements c, c + 16, c + 32, c + 48 of
// position h in word c.  So no byte holds codes of two positions.  K is stored rotated: see turn_block.
// Functions here are always inlined: shared by all targets, they must not leave a copy compiled for one of them.
#pragma once

#include <cstdint>

#define FW_SHARED [[gnu::always_inline]] inline

namespace flyweight {

enum class KVType : int { f16, bf16, f32, int8, int4, e4m3, e5m2 };  // in the order of KV_TYPES in spec.py

FW_SHARED constexpr bool coded(KVType type) { return type >= KVType::int8; }

inline constexpr int64_t kMaxHead = 1024;  // elements of a head; sizes the row buffers on kernel stacks
inline constexpr int64_t kTile = 64;       // positions scored at a time: one update of the running maximum
inline constexpr int64_t kWeights = kTile / 2;  // words of a row's weights in a tile, two a word
inline constexpr int64_t kTogether = 2;    // tiles whose weights may be multiplied with V at once
inline constexpr int64_t kSplit = 512;     // positions with a softmax of their own, merged in ascending order
inline constexpr int64_t kSpare = 64;      // bytes past the end of K, V and the scratch
inline constexpr int64_t kPartSlots = 16;  // positions of a part of codes
inline constexpr int64_t kScaleBytes = 4 * kPartSlots;

FW_SHARED constexpr int64_t element_bytes(KVType type) { return type == KVType::f32 ? 4 : 2; }  // where it has no codes

struct KVView {
  void* k = nullptr;
  void* v = nullptr;
  KVType type = KVType::f32;
  int64_t blocks = 0, heads = 0, block = 1, k_dim = 0, v_dim = 0;
  bool v_in_k = false, paired = false;

  FW_SHARED int64_t lanes() const { return block % 16 == 0 ? 16 : 1; }
  FW_SHARED int64_t row() const { return k_dim + (v_in_k ? 0 : v_dim); }  // elements stored a position and head
  // Index of the first element.  Of K the following ones are lanes() apart, in pairs where it is paired; of V v_step().
  FW_SHARED int64_t k_index(int64_t slot, int64_t head) const {
    const int64_t in_block = slot % block, side = lanes();
    return ((slot / block * heads + head) * block + in_block / side * side) * k_dim + in_block % side * (paired ? 2 : 1);
  }
  FW_SHARED int64_t v_index(int64_t slot, int64_t head) const {
    const int64_t in_block = slot % block, first = (slot / block * heads + head) * block;
    return paired ? (first + in_block / 2 * 2) * v_dim + in_block % 2 : (first + in_block) * v_dim;
  }
  FW_SHARED int64_t v_step() const { return paired ? 2 : 1; }

  // Of codes: elements as they are stored, with those that fill the last unit; bytes of a part; where a slot's part is.
  FW_SHARED int64_t k_stored() const { return round_to(k_dim, type == KVType::int4 ? 8 : 4); }
  FW_SHARED int64_t v_stored() const { return v_in_k ? 0 : round_to(v_dim, type == KVType::int4 ? 64 : 16); }
  FW_SHARED int64_t k_part() const { return k_stored() * (type == KVType::int4 ? 8 : 16) + kScaleBytes; }
  FW_SHARED int64_t v_part() const { return v_in_k ? 0 : v_stored() * (type == KVType::int4 ? 8 : 16) + kScaleBytes; }
  FW_SHARED int64_t part(int64_t slot, int64_t head) const {
    return (slot / block * heads + head) * (block / kPartSlots) + slot % block / kPartSlots;
  }
  // Elements of K that are rotated together, which spreads what one of them has too much over all: the largest power of
  // two that divides k_dim; 1 where K stays as it is.  V inside K must stay.
  FW_SHARED int64_t turn_block() const { return coded(type) && !v_in_k ? k_dim & -k_dim : 1; }

  // Bytes of all heads of a block, of K and of V.
  FW_SHARED int64_t k_bytes() const {
    return heads * (coded(type) ? block / kPartSlots * k_part() : block * k_dim * element_bytes(type));
  }
  FW_SHARED int64_t v_bytes() const {
    if (v_in_k) return 0;
    return heads * (coded(type) ? block / kPartSlots * v_part() : block * v_dim * element_bytes(type));
  }
  // Bytes of one slot's K and V of one head.
  FW_SHARED int64_t slot_bytes() const {
    return coded(type) ? (k_part() + v_part()) / kPartSlots : row() * element_bytes(type);
  }

 private:
  FW_SHARED static int64_t round_to(int64_t n, int64_t of) { return (n + of - 1) / of * of; }
};

// Whether a layer can be stored in pairs.
FW_SHARED bool pairs_fit(const KVView& kv) {
  return kv.type == KVType::bf16 && kv.block % 16 == 0 && kv.k_dim % 2 == 0 && (!kv.v_in_k || kv.v_dim % 2 == 0);
}

// Whether a layer can be stored in codes.
FW_SHARED bool codes_fit(const KVView& kv) { return kv.block % kPartSlots == 0 && kv.k_dim % 2 == 0; }

// Which positions a token sees, its own the last: at most `window` of them, none before its chunk of `chunk` positions;
// 0 for no limit.  Chunks lie at multiples of their size.
struct Sight {
  int64_t window = 0, chunk = 0;
  bool operator==(const Sight&) const = default;
};

// The first position that the token at `position` sees; it never falls as the position grows.
FW_SHARED int64_t first_seen(int64_t position, Sight sight) {
  const int64_t near = sight.window > 0 && position + 1 > sight.window ? position + 1 - sight.window : 0;
  const int64_t own = sight.chunk > 0 ? position / sight.chunk * sight.chunk : 0;
  return near > own ? near : own;
}

FW_SHARED int64_t padded(int64_t n) { return (n + 15) / 16 * 16; }

// Query tokens of a work item: enough rows to pay for widening a K/V tile, few enough for scores and sums to stay in
// L2.
FW_SHARED int64_t item_tokens(int64_t heads_per_kv) { return heads_per_kv >= 64 ? 1 : 64 / heads_per_kv; }
FW_SHARED int64_t item_rows(int64_t heads_per_kv) { return item_tokens(heads_per_kv) * heads_per_kv; }

// A record is a softmax in progress: maximum (16 floats, the first used), 16 partial sums, weighted V.
FW_SHARED int64_t record_floats(int64_t v_dim) { return 32 + padded(v_dim); }

// Scratch of one worker, in floats: two records a row, positions, K tile, V tile, packed q, scores, weights, factors.  Matrix
// registers take 16 rows at a time.
FW_SHARED int64_t worker_floats(int64_t heads_per_kv, const KVView& kv) {
  const int64_t rows = padded(item_rows(heads_per_kv));
  return 2 * rows * record_floats(kv.v_dim) + rows + kTile * (kv.k_dim + padded(kv.v_dim)) + rows * kv.k_dim +
         rows * (kTile + kTogether * kWeights) + rows;
}

}  // namespace flyweight
