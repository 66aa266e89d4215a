// Ordered lists of candidates, best first, equal logits by lower id.  Included by sample.cpp only.
#pragma once

#include "simd.h"

namespace flyweight::FW_ISA {

struct Entry {
  float x;
  int32_t id;
};

// The best few of the ids offered so far; ids must be offered in ascending order.
constexpr int kBest = 64;
struct Best {
  int count = 0, capacity = 0;
  Entry entry[kBest];

  float floor() const { return count < capacity ? -INFINITY : entry[count - 1].x; }

  void offer(float x, int32_t id) {
    if (std::isnan(x) || (count == capacity && !(x > entry[count - 1].x))) return;
    int at = count < capacity ? count++ : count - 1;
    for (; at > 0 && entry[at - 1].x < x; --at) entry[at] = entry[at - 1];
    entry[at] = {x, id};
  }
};

// Offers x[0..size) with ids from `first`.  Once the list is full nearly every block of 16 fails one comparison.
inline void offer_all(Best& best, const float* x, int64_t size, int64_t first) {
  if (best.capacity == 0) return;
  int64_t i = 0;
  for (; i < size && best.count < best.capacity; ++i) best.offer(x[i], static_cast<int32_t>(first + i));
  for (; i + 16 <= size; i += 16) {
    uint32_t above = mask_gt(load(x + i), set1(best.floor()));
    for (; above != 0; above &= above - 1) {
      const int64_t lane = i + __builtin_ctz(above);
      best.offer(x[lane], static_cast<int32_t>(first + lane));
    }
  }
  for (; i < size; ++i) best.offer(x[i], static_cast<int32_t>(first + i));
}

// Order-preserving bits, larger floats first; -0 counts as 0.
FW_INLINE uint32_t descending_key(Entry e) {
  const uint32_t u = std::bit_cast<uint32_t>(e.x + 0.0f);
  return (u >> 31) != 0 ? u : ~u & 0x7FFFFFFF;
}
FW_INLINE uint32_t id_key(Entry e) { return static_cast<uint32_t>(e.id); }

// Stable sort by a 32-bit key, ascending: insertion when short, else a byte at a time.  `other` is as long as `list`.
template <uint32_t (*Key)(Entry)>
void sort_entries(Entry* list, Entry* other, int64_t size) {
  if (size <= 32) {
    for (int64_t i = 1; i < size; ++i) {
      const Entry e = list[i];
      int64_t at = i;
      for (; at > 0 && Key(list[at - 1]) > Key(e); --at) list[at] = list[at - 1];
      list[at] = e;
    }
    return;
  }
  Entry *from = list, *to = other;
  for (int shift = 0; shift < 32; shift += 8) {
    int64_t start[257] = {};
    for (int64_t i = 0; i < size; ++i) ++start[(Key(from[i]) >> shift & 255) + 1];
    for (int b = 0; b < 256; ++b) start[b + 1] += start[b];
    for (int64_t i = 0; i < size; ++i) to[start[Key(from[i]) >> shift & 255]++] = from[i];
    Entry* const swap = from;
    from = to;
    to = swap;
  }
  // four passes: the result is back in `list`
}

}  // namespace flyweight::FW_ISA
