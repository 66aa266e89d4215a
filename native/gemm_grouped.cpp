// Products over grouped weights.
//
// A kind answers four questions about a tile: the codes of a quad (four K), how codes multiply, the scale and minimum of a
// sub-group, and the exact float32 values.  All are answered from its Structure (kernels_gemm.h), GGUF's at compile time;
// loops and the order of summation are in gemm_tile.h.
//
// Error against float64 of the same rounded operands, per output: at most (2 K/sub + 2) * 2^-24 * sum |scale dot| for
// int8 activations (integer dots are exact), K * 2^-24 * sum |w x| for float activations (one fma per K).
#include "gemm_codes.h"
#include "gemm_floats.h"
#include "gemm_opened.h"
#include "gemm_tile.h"
#if defined(FW_PAIRS)
#include "gemm_open_pairs.h"
#endif

namespace flyweight::FW_ISA {
namespace {

// The values of ops/grouped.py's tables, + 128.
alignas(16) constexpr uint8_t kNonLinear[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};
alignas(16) constexpr uint8_t kE2M1[16] = {128, 129, 130, 131, 132, 134, 136, 140, 128, 127, 126, 125, 124, 122, 120, 116};

// 2^(x - 128), subnormal down to x = 0: of two factors, each a normal number.
FW_INLINE F32x16 power(I32x16 x) {
  const I32x16 half = shr<1>(x), bias = iset1(63);
  return mul(as_f32(shl<23>(add(half, bias))), as_f32(shl<23>(add(sub(x, half), bias))));
}

// The exact float32 values of a quad whose scale is `by`: (code - offset) * by, less the minimum.
template <int Offset, bool Mins>
FW_INLINE void scale_quad(F32x16 (&out)[4], F32x16 by, F32x16 low) {
#pragma GCC unroll 4
  for (int b = 0; b < 4; ++b) {
    out[b] = mul(by, Offset ? sub(out[b], set1(Offset)) : out[b]);
    if constexpr (Mins) out[b] = sub(out[b], low);
  }
}

// A kind of GGUF: its structure is known at compile time.
template <Kind K>
class Grouped {
 public:
  static constexpr Structure kS = structure_of(K);
  static constexpr int kGroups = kS.k() / kGroup;  // of a block
  static constexpr int kSub = kS.sub, kStep = 4;
  static constexpr bool kMins = kS.mins, kSmall = kS.bits <= 4;
  static constexpr int kBits = kS.bits;
  // Signed values reach the multiplication + 128.  vpdpbusd wants unsigned x signed, and the offset comes off through the
  // sum of x; elsewhere signed x signed is cheaper than full-range unsigned.
  static constexpr bool kSigned = kS.is_signed() || kS.table != Table::none;
  static constexpr int kOffset = kSigned ? 128 : kS.zero;
#if defined(FW_VNNI)
  static constexpr int kZero = kOffset;
#else
  static constexpr int kZero = kSigned ? 0 : kOffset;
#endif

#if defined(FW_PAIRS)
  static constexpr int value_of(int code) {
    return kS.table == Table::none ? code - kS.zero : (kS.table == Table::e2m1 ? kE2M1 : kNonLinear)[code % 16] - 128;
  }
  static constexpr HalfTable kHalves = half_table([](int code) { return value_of(code); });
  static constexpr int kTop = (1 << kS.bits) - 1;
  static constexpr float kMostCode = kS.table == Table::e2m1 ? 12 : kS.table != Table::none ? 127 : kS.bits == 8 ? 128
                                     : kS.mins               ? kTop : kS.zero > kTop - kS.zero ? kS.zero : kTop - kS.zero;
#endif

  FW_INLINE explicit Grouped(Kind) {}
  FW_INLINE static constexpr int64_t group_bytes() { return kS.bytes() / kGroups; }

  FW_INLINE static const uint8_t* words(const uint8_t* tile, int64_t g) {
    return block(tile, g) + kS.codes() + g % kGroups * 64 * kS.bits;
  }
  FW_INLINE static B8x64 quad(const uint8_t* tile, int64_t g, int q) {
    const B8x64 codes = quad_of<kS.bits>(words(tile, g), q);
    if constexpr (kS.table == Table::none) return codes;
    return lookup(kS.table == Table::e2m1 ? kE2M1 : kNonLinear, codes);
  }

  // X: B8x64, or a place of four bytes for all lanes.
  template <class X>
  FW_INLINE static I32x16 dot(I32x16 acc, B8x64 w, X x) {
    if constexpr (!kSigned) return dot_u7i8(acc, w, x);
    if constexpr (kZero) return dot_u8i8(acc, w, x);
    return dot_i8i8(acc, bxor(w, bset1(128)), x);
  }

  FW_INLINE static F32x16 scale(const uint8_t* tile, int64_t g, int s) {
    const uint8_t* at = block(tile, g);
    const uint8_t* p = at + kS.scales() + number(g, s);
    if constexpr (kS.number == Number::exponent) return power(load_u8_i32(p));
    if constexpr (kS.number == Number::f16) return load_f16(halves(p));
    F32x16 whole = zero();
    if constexpr (kS.number == Number::i8) whole = load_i8(reinterpret_cast<const int8_t*>(p));
    if constexpr (kS.number == Number::u8) whole = load_u8(p);
    if constexpr (kS.number == Number::nibble) whole = to_f32(and_(load_u8_i32(p), iset1(15)));
    return mul(kS.super_bytes == 4 ? load(reinterpret_cast<const float*>(at)) : load_f16(halves(at)), whole);
  }

  FW_INLINE static F32x16 min(const uint8_t* tile, int64_t g, int s) {
    const uint8_t* at = block(tile, g);
    if constexpr (kS.number == Number::f16) return load_f16(halves(at + kS.minima() + number(g, s)));
    const F32x16 whole = kS.number == Number::nibble ? to_f32(shr<4>(load_u8_i32(at + kS.scales() + number(g, s))))
                                                     : load_u8(at + kS.minima() + number(g, s));
    return mul(load_f16(halves(at + kLanes * kS.super_bytes)), whole);
  }

  // The products before the minimum are exact: 11 + 6 + 5 bits at most.
  FW_INLINE static void values(const uint8_t* tile, int64_t k, F32x16 (&out)[4]) {
    const int64_t g = k / kGroup;
    const int q = static_cast<int>(k % kGroup) / 4, s = q * 4 / kSub;
    spread(quad(tile, g, q), out);
    scale_quad<kOffset, kMins>(out, scale(tile, g, s), kMins ? min(tile, g, s) : zero());
  }

 private:
  FW_INLINE static const uint8_t* block(const uint8_t* tile, int64_t g) { return tile + g / kGroups * kS.bytes(); }
  FW_INLINE static int64_t number(int64_t g, int s) {
    return (g % kGroups * (kGroup / kSub) + s) * kLanes * kS.scale_bytes();
  }
};

// A kind whose groups and numbers its `Form` describes: `Bits` to a code, with a zero point or minimum to each group
// (`Mins`), or symmetric.  Unsigned codes of 8 bits are read as signed ones of 128 less.
template <int Bits, bool Mins>
class Formed : FormedBlocks {
 public:
  static constexpr int kSub = kGroup, kStep = 4;
  static constexpr bool kMins = Mins, kSmall = Bits <= 4, kSigned = Bits == 8;
  static constexpr int kBits = Bits;
  static constexpr int kOffset = kSigned ? 128 : Mins ? 0 : 1 << (Bits - 1);
#if defined(FW_VNNI)
  static constexpr int kZero = Mins ? 0 : kOffset;  // with minima their terms need the sums of x
#else
  static constexpr int kZero = kSigned ? 0 : kOffset;
#endif

#if defined(FW_PAIRS)
  static constexpr HalfTable kHalves = half_table([](int code) { return code % 16 - kOffset; });
  static constexpr float kMostCode = kSigned ? 128 : Mins ? (1 << Bits) - 1 : kOffset;
#endif

  using FormedBlocks::FormedBlocks, FormedBlocks::group_bytes;

  FW_INLINE const uint8_t* words(const uint8_t* tile, int64_t g) const { return codes<Bits>(tile, g); }
  FW_INLINE B8x64 quad(const uint8_t* tile, int64_t g, int q) const { return quad_of<Bits>(words(tile, g), q); }

  // X: B8x64, or a place of four bytes for all lanes.
  template <class X>
  FW_INLINE static I32x16 dot(I32x16 acc, B8x64 w, X x) {
    if constexpr (!kSigned) return dot_u7i8(acc, w, x);
    if constexpr (kZero) return dot_u8i8(acc, w, x);
    return dot_i8i8(acc, bxor(w, bset1(128)), x);
  }

  FW_INLINE F32x16 scale(const uint8_t* tile, int64_t g, int) const { return number(block(tile, g)); }

  // scale * zero point, or the minimum; more by 128 scales where codes are read as less.
  FW_INLINE F32x16 min(const uint8_t* tile, int64_t g, int) const {
    const uint8_t* at = block(tile, g);
    const F32x16 by = number(at);
    if (s_.low == Low::min) return kSigned ? sub(number(at + low_), mul(by, set1(128))) : number(at + low_);
    return mul(by, sub(point(at), set1(kSigned ? 128 : 0)));
  }

  FW_INLINE void values(const uint8_t* tile, int64_t k, F32x16 (&out)[4]) const {
    const int64_t g = k / kGroup;
    const uint8_t* at = block(tile, g);
    const F32x16 by = number(at);
    spread(quad(tile, g, static_cast<int>(k % kGroup) / 4), out);
    if constexpr (!Mins) return scale_quad<kOffset, false>(out, by, zero());
    if (s_.low == Low::min) return scale_quad<0, true>(out, by, number(at + low_));
    const F32x16 zeros = point(at);
#pragma GCC unroll 4
    for (int b = 0; b < 4; ++b) out[b] = mul(by, sub(out[b], zeros));
  }

 private:
  FW_INLINE F32x16 point(const uint8_t* at) const { return s_.low == Low::zero ? load_u8(at + low_) : number(at + low_); }
};

// `f` for the type of a grouped kind.
template <class F>
FW_INLINE void with_kind(Kind kind, F f) {
  switch (base_of(kind)) {
    case Kind::q8_0: return f.template operator()<Grouped<Kind::q8_0>>();
    case Kind::q4_0: return f.template operator()<Grouped<Kind::q4_0>>();
    case Kind::q4_1: return f.template operator()<Grouped<Kind::q4_1>>();
    case Kind::q5_0: return f.template operator()<Grouped<Kind::q5_0>>();
    case Kind::q5_1: return f.template operator()<Grouped<Kind::q5_1>>();
    case Kind::iq4_nl: return f.template operator()<Grouped<Kind::iq4_nl>>();
    case Kind::mxfp4: return f.template operator()<Grouped<Kind::mxfp4>>();
    case Kind::nvfp4: return f.template operator()<Grouped<Kind::nvfp4>>();
    case Kind::q2_k: return f.template operator()<Grouped<Kind::q2_k>>();
    case Kind::q3_k: return f.template operator()<Grouped<Kind::q3_k>>();
    case Kind::q4_k: return f.template operator()<Grouped<Kind::q4_k>>();
    case Kind::q5_k: return f.template operator()<Grouped<Kind::q5_k>>();
    case Kind::q6_k: return f.template operator()<Grouped<Kind::q6_k>>();
    case Kind::iq4_xs: return f.template operator()<Grouped<Kind::iq4_xs>>();
    case Kind::int8_k: return f.template operator()<Grouped<Kind::int8_k>>();
    case Kind::u2: return f.template operator()<Formed<2, true>>();
    case Kind::u3: return f.template operator()<Formed<3, true>>();
    case Kind::u4: return f.template operator()<Formed<4, true>>();
    case Kind::u8: return f.template operator()<Formed<8, true>>();
    case Kind::s4: return f.template operator()<Formed<4, false>>();
    case Kind::s8: return f.template operator()<Formed<8, false>>();
    default: return;
  }
}

// Codes as the products of gemm_opened.cpp want them: without their offset where they are to be signed.
template <class W>
FW_INLINE B8x64 opened_codes(B8x64 codes) {
#if defined(FW_ISA_AMX)
  if constexpr (W::kSigned) return bxor(codes, bset1(128));
  return bsub(codes, bset1(W::kOffset));
#else
  return W::kSigned && !W::kZero ? bxor(codes, bset1(128)) : codes;
#endif
}

template <class W>
void open_tile(Kind kind, const uint8_t* tile, int64_t group, int64_t groups, Opened& to) {
  constexpr int subs = kGroup / W::kSub;
  const W weight(kind);
  for (int64_t g = 0; g < groups; ++g) {
#pragma GCC unroll 8
    for (int q = 0; q < kGroup / 4; ++q)
      bstore(to.codes + (g * (kGroup / 4) + q) * 64, opened_codes<W>(weight.quad(tile, group + g, q)));
#pragma GCC unroll 2
    for (int s = 0; s < subs; ++s) {
      store(to.scales + (g * subs + s) * kLanes, weight.scale(tile, group + g, s));
      if constexpr (W::kMins) store(to.lows + (g * subs + s) * kLanes, sub(zero(), weight.min(tile, group + g, s)));
    }
  }
}

template <class W>
void open_floats(Kind kind, const uint8_t* tile, int64_t k, int64_t count, float* to) {
  const W weight(kind);
  for (const int64_t end = k + count; k < end; k += W::kStep, to += W::kStep * kLanes) {
    F32x16 w[W::kStep];
    weight.values(tile, k, w);
    each<W::kStep>([&](auto j) FW_LAMBDA { store(to + j * kLanes, w[j]); });
  }
}

template <class W>
void multiply_kind(const LinearJob& job, Range tiles, Range panels) {
#if defined(FW_PAIRS)
  if (job.mode == Mode::bf16) return multiply_opened_pairs(job, tiles, panels, kOpenPairs<W>);
#endif
  if (by_blocks(job))
    return multiply_opened(job, tiles, panels, {W::kSub, W::kMins, W::kSigned, W::kSmall && !W::kSigned}, open_tile<W>);
#if !defined(FW_ISA_AMX)  // there, the base's
  walk(job, kRowInners<Int8<W>>, tiles, panels);
#endif
}

}  // namespace

CodeSums code_sums(Kind kind) {
  CodeSums sums{0, false};
  with_kind(kind, [&]<class W>() { sums = {W::kZero, W::kMins}; });
  return sums;
}

void multiply_grouped(const LinearJob& job, Range tiles, Range panels) {
  with_kind(job.kind, [&]<class W>() { multiply_kind<W>(job, tiles, panels); });
}

#if !defined(FW_BASE)
void multiply_grouped_floats(const LinearJob& job, Range tiles, Range panels) {
  with_kind(job.kind, [&]<class W>() { multiply_floats(job, tiles, panels, open_floats<W>); });
}

void unpack_grouped(const LinearJob& job, int64_t row, float* out) {
  with_kind(job.kind, [&]<class W>() { unpack_row<W>(job, row, out); });
}
#endif

}  // namespace flyweight::FW_ISA
