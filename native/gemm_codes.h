// How kernels read the codes and numbers of packed blocks (kernels_gemm.h): what grouped kinds share, whatever their codes
// represent.
#pragma once

#include "gemm_tile.h"

namespace flyweight::FW_ISA {

FW_INLINE const uint16_t* halves(const uint8_t* p) { return reinterpret_cast<const uint16_t*>(p); }

// Four consecutive K of 16 rows from codes in 32-bit lanes: byte b is K + b.
FW_INLINE void spread(B8x64 codes, F32x16 (&out)[4]) {
  const I32x16 w = as_words(codes), byte = iset1(255);
  out[0] = to_f32(and_(w, byte));
  out[1] = to_f32(and_(shr<8>(w), byte));
  out[2] = to_f32(and_(shr<16>(w), byte));
  out[3] = to_f32(shr<24>(w));
}

// Down by `by` bits (up where negative).  Known at compile time where the loops over quads are unrolled.
FW_INLINE I32x16 shift(I32x16 v, int by) {
  switch (by) {
    case -4: return shl<4>(v);
    case -3: return shl<3>(v);
    case -2: return shl<2>(v);
    case -1: return shl<1>(v);
    case 1: return shr<1>(v);
    case 2: return shr<2>(v);
    case 3: return shr<3>(v);
    case 4: return shr<4>(v);
    case 5: return shr<5>(v);
    case 6: return shr<6>(v);
    default: return v;
  }
}

// Quad q of a plane of `Width` bits, moved up to bit `Up` of each byte.  Shifting whole words is safe: the mask drops
// what crosses a byte.
template <int Width, int Up>
FW_INLINE I32x16 plane(const uint8_t* codes, int q) {
  constexpr int quads = 8 / Width;
  const I32x16 word = as_words(bload(codes + q / quads * 64));
  return and_(shift(word, q % quads * Width - Up), iset1((((1 << Width) - 1) << Up) * 0x01010101));
}

template <int Bits>
FW_INLINE B8x64 quad_of(const uint8_t* codes, int q) {
  constexpr int low = low_bits(Bits);
  if constexpr (Bits == 8)
    return bload(codes + 64 * q);
  else if constexpr (Bits == low)
    return as_bytes(plane<low, 0>(codes, q));
  else
    return as_bytes(or_(plane<low, 0>(codes, q), plane<Bits - low, low>(codes + 64 * low, q)));
}

FW_INLINE F32x16 load_number(Number number, const uint8_t* p) {
  switch (number) {
    case Number::f16: return load_f16(halves(p));
    case Number::bf16: return load_bf16(halves(p));
    case Number::f32: return load(reinterpret_cast<const float*>(p));
    default: return set1(1);
  }
}

// Blocks of a kind that has a `Form`: one scale to a block at most, and what is taken off behind it.
class FormedBlocks {
 public:
  FW_INLINE explicit FormedBlocks(Kind kind)
      : s_(structure_of(kind)), bytes_(s_.bytes()), codes_(s_.codes()), low_(s_.minima()) {
    const int groups = s_.k() / kGroup;
    shift_ = groups == 4 ? 2 : groups == 2 ? 1 : 0;
  }
  FW_INLINE int64_t group_bytes() const { return bytes_ >> shift_; }

 protected:
  FW_INLINE const uint8_t* block(const uint8_t* tile, int64_t g) const { return tile + (g >> shift_) * bytes_; }
  template <int Bits>
  FW_INLINE const uint8_t* codes(const uint8_t* tile, int64_t g) const {
    return block(tile, g) + codes_ + (g & ((1 << shift_) - 1)) * 64 * Bits;
  }
  FW_INLINE F32x16 number(const uint8_t* p) const { return load_number(s_.number, p); }

  Structure s_;
  int64_t bytes_;
  int codes_, low_, shift_;
};

}  // namespace flyweight::FW_ISA
