// From the fused projection to attention's inputs: split, norm the heads, rotate, store K and V; and moving slots.
//
// Rotary embedding (Su et al., 2021) in half-split order: element i pairs with i + half.  Invariant: every number
// written depends on its own token only, in an order fixed by d; K and V are rounded to nearest even once, here.
#include <cmath>
#include <cstring>

#include "kernels_attention.h"
#include "simd.h"
#include "store_codes.h"

namespace flyweight::FW_ISA {
namespace {

// A chunk of the pool's work, some microseconds: all heads of so many tokens, or a share of the heads of more.  What is
// stored of one head at neighbouring positions lies in the same lines, so few tokens are parted by heads.
constexpr int64_t kTokens = 4, kShares = 4;
constexpr int64_t kLeast = 4096;  // numbers of a token that are worth parting

FW_INLINE int tail(int64_t left) { return left < 16 ? static_cast<int>(left) : 16; }

// Whole vectors without a mask: what a masked store wrote cannot be loaded before it has reached the cache.
FW_INLINE F32x16 part(const float* p, int n) { return n == 16 ? load(p) : load_tail(p, n); }
FW_INLINE void put(float* p, F32x16 v, int n) {
  if (n == 16) {
    store(p, v);
  } else {
    store_tail(p, v, n);
  }
}

F32x16 squares(const float* x, int64_t dim) {
  F32x16 sum = zero();
  for (int64_t d = 0; d < dim; d += 16) {
    const F32x16 v = part(x + d, tail(dim - d));
    sum = fma(v, v, sum);
  }
  return sum;
}

float rms_factor(F32x16 sum, int64_t count, float eps) {
  return 1.0f / std::sqrt(hsum(sum) / static_cast<float>(count) + eps);
}

// The RMS norm of one token's heads, each by itself or all as one row: then each head's squares are summed by
// themselves and added head after head.
class TokenNorm {
 public:
  TokenNorm(const HeadWeights& norm, const float* x, int64_t heads, int64_t dim, float eps)
      : norm_(norm), dim_(dim), eps_(eps) {
    if (!norm.whole) return;
    F32x16 sum = zero();
    for (int64_t head = 0; head < heads; ++head) sum = add(sum, squares(x + head * dim, dim));
    whole_ = rms_factor(sum, heads * dim, eps);
  }

  // row := the head's elements x, normed where there are weights.
  void write(float* row, const float* x, int64_t head) const {
    if (norm_.w == nullptr) {
      std::memcpy(row, x, static_cast<size_t>(dim_) * sizeof(float));
      return;
    }
    const float* w = norm_.w + (norm_.whole ? head * dim_ : 0);
    const F32x16 factor = set1(norm_.whole ? whole_ : rms_factor(squares(x, dim_), dim_, eps_));
    for (int64_t d = 0; d < dim_; d += 16) {
      const int n = tail(dim_ - d);
      put(row + d, mul(mul(part(x + d, n), factor), part(w + d, n)), n);
    }
  }

 private:
  const HeadWeights& norm_;
  int64_t dim_;
  float eps_, whole_ = 0;
};

void rotate(float* row, const float* cos, const float* sin, int64_t half) {
  for (int64_t i = 0; i < half; i += 16) {
    const int n = tail(half - i);
    const F32x16 a = part(row + i, n), b = part(row + half + i, n);
    const F32x16 c = part(cos + i, n), s = part(sin + i, n);
    put(row + i, sub(mul(a, c), mul(b, s)), n);
    put(row + half + i, add(mul(b, c), mul(a, s)), n);
  }
}

template <KVType type>
FW_INLINE void narrow(uint16_t* to, F32x16 v) {
  if constexpr (type == KVType::f16) {
    store_f16(to, v);
  } else {
    store_bf16(to, v);
  }
}
template <KVType type>
FW_INLINE void narrow(float* to, F32x16 v) {
  store(to, v);
}

// to[d * stride] = row[d], rounded.
template <KVType type, class T>
void store_row(T* to, int64_t stride, const float* row, int64_t dim) {
  for (int64_t d = 0; d < dim; d += 16) {
    const int n = tail(dim - d);
    T lane[16];
    narrow<type>(lane, part(row + d, n));
    if (stride == 1) {
      std::memcpy(to + d, lane, static_cast<size_t>(n) * sizeof(T));
    } else {
      for (int i = 0; i < n; ++i) to[(d + i) * stride] = lane[i];
    }
  }
}

// The same for a row of K in pairs of elements, 16 positions side by side.
void store_k_pairs(uint16_t* to, const float* row, int64_t dim) {
  for (int64_t d = 0; d < dim; d += 16) {
    const int n = tail(dim - d);
    uint16_t lane[16];
    store_bf16(lane, part(row + d, n));
    for (int i = 0; i < n; i += 2) std::memcpy(to + (d + i) * 16, lane + i, 2 * sizeof(uint16_t));
  }
}

// `row` may be changed.
template <KVType type, class T>
void store_k(const KVView& kv, int64_t slot, int64_t head, float* row) {
  if constexpr (coded(type)) {
    store_k_codes<type>(kv, slot, head, row);
  } else {
    T* to = static_cast<T*>(kv.k) + kv.k_index(slot, head);
    if constexpr (type == KVType::bf16) {
      if (kv.paired) return store_k_pairs(to, row, kv.k_dim);
    }
    store_row<type>(to, kv.lanes(), row, kv.k_dim);
  }
}

// Rows of V at two neighbouring positions: whole words.
void store_v_pairs(uint16_t* to, const float* even, const float* odd, int64_t dim) {
  for (int64_t d = 0; d < dim; d += 16, to += 32) {
    const int n = tail(dim - d);
    const I32x16 pairs = or_(bf16_bits(part(even + d, n)), shl<16>(bf16_bits(part(odd + d, n))));
    put(reinterpret_cast<float*>(to), as_f32(pairs), n);
  }
}

template <KVType type, class T>
void store_v(const RopeStoreArgs& a, const HeadShare& share) {
  const KVView& kv = a.kv;
  for (int64_t t = share.begin, next; t < share.end; t = next) {
    const int64_t slot = a.slots[t];
    const bool both = kv.paired && slot % 2 == 0 && t + 1 < share.end && a.slots[t + 1] == slot + 1;
    next = both ? t + 2 : t + 1;
    const float* x = a.x.v + t * a.x.stride + share.first * kv.v_dim;
    for (int64_t head = share.first; head < share.last; ++head, x += kv.v_dim) {
      if constexpr (coded(type)) {
        store_v_codes<type>(kv, slot, head, x);
      } else {
        T* to = static_cast<T*>(kv.v) + kv.v_index(slot, head);
        if constexpr (type == KVType::bf16) {
          if (both) {
            store_v_pairs(to, x, x + a.x.stride, kv.v_dim);
            continue;
          }
        }
        store_row<type>(to, kv.v_step(), x, kv.v_dim);
      }
    }
  }
}

template <KVType type, class T>
void store_qk(const RopeStoreArgs& a, int64_t t, const HeadShare& share) {
  const KVView& kv = a.kv;
  const int64_t each = a.heads / kv.heads;
  const int64_t slot = a.slots[t];
  const float* cos = a.cos + t * a.half;
  const float* sin = a.sin + t * a.half;
  const float* x = a.x.q + t * a.x.stride;
  const TokenNorm q_norm(a.q_norm, x, a.heads, kv.k_dim, a.eps);
  for (int64_t head = share.first * each; head < share.last * each; ++head) {
    float* q = a.q + (t * a.heads + head) * kv.k_dim;
    q_norm.write(q, x + head * kv.k_dim, head);
    rotate(q, cos, sin, a.half);
  }
  x = a.x.k + t * a.x.stride;
  const TokenNorm k_norm(a.k_norm, x, kv.heads, kv.k_dim, a.eps);
  for (int64_t head = share.first; head < share.last; ++head) {
    alignas(64) float k[kMaxHead];
    k_norm.write(k, x + head * kv.k_dim, head);
    rotate(k, cos, sin, a.half);
    store_k<type, T>(kv, slot, head, k);
  }
}

template <KVType type, class T>
void store_share(const RopeStoreArgs& a, const HeadShare& share) {
  for (int64_t t = share.begin; t < share.end; ++t) store_qk<type, T>(a, t, share);
  if (!a.kv.v_in_k) store_v<type, T>(a, share);
}

// Into how many shares the heads of a token are parted.  A norm of all heads needs all of them.
int64_t count_shares(const RopeStoreArgs& a) {
  if (a.q_norm.whole || a.k_norm.whole || a.heads % a.kv.heads != 0 || a.kv.heads < kShares) return 1;
  return a.tokens * (a.heads + a.kv.heads) * a.kv.k_dim < kLeast ? 1 : kShares;
}

// Calls f(element, its place) for every stored element of a slot and head.
template <class T, class F>
void each_element(const KVView& kv, int64_t slot, int64_t head, T* held, F&& f) {
  const int64_t side = kv.lanes(), pair = kv.paired ? 2 : 1, v_dim = kv.row() - kv.k_dim;
  T* k = static_cast<T*>(kv.k) + kv.k_index(slot, head);
  for (int64_t d = 0; d < kv.k_dim; ++d) f(held[d], k[d / pair * pair * side + d % pair]);
  if (v_dim == 0) return;
  T* v = static_cast<T*>(kv.v) + kv.v_index(slot, head);
  for (int64_t d = 0; d < v_dim; ++d) f(held[kv.k_dim + d], v[d * kv.v_step()]);
}

// One KV head; `held` takes every K and V row before the first is written.
template <class T>
void move_head(const KVView& kv, int64_t head, const int32_t* src, const int32_t* dst, int64_t count, T* held) {
  for (int64_t i = 0; i < count; ++i)
    each_element(kv, src[i], head, held + i * kv.row(), [](T& to, T& from) { to = from; });
  for (int64_t i = 0; i < count; ++i)
    each_element(kv, dst[i], head, held + i * kv.row(), [](T& from, T& to) { to = from; });
}

}  // namespace

void rope_store_share(const RopeStoreArgs& args, const HeadShare& share);
void rope_store_share(const RopeStoreArgs& args, const HeadShare& share) {
  switch (args.kv.type) {
    case KVType::f16: return store_share<KVType::f16, uint16_t>(args, share);
    case KVType::bf16: return store_share<KVType::bf16, uint16_t>(args, share);
    case KVType::f32: return store_share<KVType::f32, float>(args, share);
    case KVType::int8: return store_share<KVType::int8, uint8_t>(args, share);
    case KVType::int4: return store_share<KVType::int4, uint8_t>(args, share);
    case KVType::e4m3: return store_share<KVType::e4m3, uint8_t>(args, share);
    case KVType::e5m2: return store_share<KVType::e5m2, uint8_t>(args, share);
  }
}

void rope_store(Pool& pool, const RopeStoreArgs& args);
void rope_store(Pool& pool, const RopeStoreArgs& args) {
  const int64_t shares = count_shares(args), each = kTokens * shares;
  pool.run_portions((args.tokens + each - 1) / each * shares, [&](int64_t chunk, int) {
    const int64_t begin = chunk / shares * each, end = begin + each < args.tokens ? begin + each : args.tokens;
    const int64_t part = chunk % shares, heads = args.kv.heads;
    rope_store_share(args, {begin, end, heads * part / shares, heads * (part + 1) / shares});
  });
}

void move_kv(Pool& pool, const KVView& kv, const int32_t* src, const int32_t* dst, int64_t count, void* scratch);
void move_kv(Pool& pool, const KVView& kv, const int32_t* src, const int32_t* dst, int64_t count, void* scratch) {
  const int64_t each = count * kv.row();
  pool.run(kv.heads, [&](int64_t head, int) {
    if (coded(kv.type)) {
      move_codes(kv, head, src, dst, count, static_cast<uint8_t*>(scratch) + head * count * kv.slot_bytes());
    } else if (kv.type == KVType::f32) {
      move_head(kv, head, src, dst, count, static_cast<float*>(scratch) + head * each);
    } else {
      move_head(kv, head, src, dst, count, static_cast<uint16_t*>(scratch) + head * each);
    }
  });
}

}  // namespace flyweight::FW_ISA
