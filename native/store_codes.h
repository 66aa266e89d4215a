// Rows of K and V in codes to their places in the cache, and moving slots of them.  Included by rope_store.cpp.
//
// Invariant: a slot's bytes and its scales belong to it alone; tokens may be stored by any worker, in any order.
#pragma once

#include "kv_codes.h"

namespace flyweight::FW_ISA {

// A slot's place in its part.
struct CodePlace {
  uint8_t* part;
  int64_t lane;
  float* scale;
};

inline CodePlace k_place(const KVView& kv, int64_t slot, int64_t head) {
  const int64_t lane = slot % kv.block % kPartSlots;
  uint8_t* part = static_cast<uint8_t*>(kv.k) + kv.part(slot, head) * kv.k_part();
  return {part, lane, reinterpret_cast<float*>(part + kv.k_part() - kScaleBytes) + lane};
}

inline CodePlace v_place(const KVView& kv, int64_t slot, int64_t head) {
  const int64_t lane = slot % kv.block % kPartSlots;
  uint8_t* part = static_cast<uint8_t*>(kv.v) + kv.part(slot, head) * kv.v_part();
  return {part, lane, reinterpret_cast<float*>(part + kv.v_part() - kScaleBytes) + lane};
}

// f(bytes) for the places of a slot's codes of K, in order: pieces of N bytes.
template <int N, class F>
FW_INLINE void each_k_piece(const KVView& kv, const CodePlace& at, F&& f) {
  uint8_t* p = at.part + at.lane * N;
  for (uint8_t* end = at.part + kv.k_part() - kScaleBytes; p < end; p += N * kPartSlots) f(p);
}

// The same of V: pieces of N bytes, every second one.
template <int N, class F>
FW_INLINE void each_v_piece(const KVView& kv, const CodePlace& at, F&& f) {
  const int64_t row = 2 * (kv.v_part() - kScaleBytes) / kPartSlots;  // bytes of two positions
  uint8_t* p = at.part + at.lane / 2 * row + at.lane % 2 * N;
  for (uint8_t* end = at.part + (at.lane / 2 + 1) * row; p < end; p += 2 * N) f(p);
}

// Four codes as nibbles of two bytes.
FW_INLINE void put_nibbles(uint8_t* to, const uint8_t* code, int64_t step) {
  to[0] = static_cast<uint8_t>(code[0] | code[step] << 4);
  to[1] = static_cast<uint8_t>(code[2 * step] | code[3 * step] << 4);
}

// `row` is changed.
template <KVType type>
void store_k_codes(const KVView& kv, int64_t slot, int64_t head, float* row) {
  const int64_t block = kv.turn_block();
  turn_row(row, kv.k_dim, block);
  CodedRow coded;
  encode<type>(row, kv.k_dim, coded);
  const CodePlace at = k_place(kv, slot, head);
  *at.scale = coded.scale / static_cast<float>(block);  // exact: a power of two
  const uint8_t* from = coded.code;
  if constexpr (type == KVType::int4) {
    each_k_piece<4>(kv, at, [&](uint8_t* to) FW_LAMBDA {
      put_nibbles(to, from, 2);
      put_nibbles(to + 2, from + 1, 2);
      from += 8;
    });
  } else {
    each_k_piece<2>(kv, at, [&](uint8_t* to) FW_LAMBDA {
      std::memcpy(to, from, 2);
      from += 2;
    });
  }
}

template <KVType type>
void store_v_codes(const KVView& kv, int64_t slot, int64_t head, const float* row) {
  CodedRow coded;
  encode<type>(row, kv.v_dim, coded);
  const CodePlace at = v_place(kv, slot, head);
  *at.scale = coded.scale;
  const uint8_t* from = coded.code;
  if constexpr (type == KVType::int4) {
    int64_t c = 0;
    each_v_piece<2>(kv, at, [&](uint8_t* to) FW_LAMBDA {
      put_nibbles(to, from + c / 16 * 64 + c % 16, 16);
      ++c;
    });
  } else {
    each_v_piece<1>(kv, at, [&](uint8_t* to) FW_LAMBDA { *to = *from++; });
  }
}

// Calls f(place, bytes) for all that is stored of a slot and head.
template <class F>
void each_code(const KVView& kv, int64_t slot, int64_t head, F&& f) {
  const CodePlace k = k_place(kv, slot, head);
  f(k.scale, 4);
  if (kv.type == KVType::int4) {
    each_k_piece<4>(kv, k, [&](uint8_t* p) { f(p, 4); });
  } else {
    each_k_piece<2>(kv, k, [&](uint8_t* p) { f(p, 2); });
  }
  if (kv.v_in_k) return;
  const CodePlace v = v_place(kv, slot, head);
  f(v.scale, 4);
  if (kv.type == KVType::int4) {
    each_v_piece<2>(kv, v, [&](uint8_t* p) { f(p, 2); });
  } else {
    each_v_piece<1>(kv, v, [&](uint8_t* p) { f(p, 1); });
  }
}

// One KV head; `held` takes every slot's codes and scales before the first is written.
inline void move_codes(const KVView& kv, int64_t head, const int32_t* src, const int32_t* dst, int64_t count,
                       uint8_t* held) {
  uint8_t* at = held;
  for (int64_t i = 0; i < count; ++i)
    each_code(kv, src[i], head, [&](const void* from, size_t n) { std::memcpy(at, from, n), at += n; });
  at = held;
  for (int64_t i = 0; i < count; ++i)
    each_code(kv, dst[i], head, [&](void* to, size_t n) { std::memcpy(to, at, n), at += n; });
}

}  // namespace flyweight::FW_ISA
