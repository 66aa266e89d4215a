// Products over weights whose codes represent floats (nf4, fp4, e4m3, e5m2).
//
// A code is opened to the bf16 nearest its value, which is exact but for nf4 and fp4, and multiplied in pairs (dot_bf16).
// The pairs of a block (kernels_gemm.h), or of 128 K where there are no scales, are summed by themselves, K upward; then
// total = fma(sum, scale, total).  The same whatever the number of tokens.
// Error against float64 of the same rounded operands, per output: (K of a block + K / that) * 2^-24 * sum |w x|.
#include "gemm_codes.h"
#include "gemm_floats.h"
#include "gemm_stretch.h"

namespace flyweight::FW_ISA {
namespace {

// ops/tables.py's.
alignas(64) constexpr float kNF4[16] = {-1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f,
                                        -0.28444138169288635f, -0.18477343022823334f, -0.09105003625154495f, 0.0f,
                                        0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f,
                                        0.33791524171829224f, 0.44070982933044434f, 0.5626170039176941f,
                                        0.7229568362236023f, 1.0f};
alignas(64) constexpr float kFP4[16] = {0.0f,  0.0052083333f,  0.66666667f,  1.0f,  0.33333333f,  0.5f,  0.16666667f,  0.25f,
                                        -0.0f, -0.0052083333f, -0.66666667f, -1.0f, -0.33333333f, -0.5f, -0.16666667f, -0.25f};

#if defined(FW_ISA_AVX512)
// bf16 of those tables twice, as their entries are chosen by five bits; and of the sizes of codes of 8 bits.
constexpr uint16_t half_of(float x) {  // nearest even
  const auto u = __builtin_bit_cast(uint32_t, x);
  return static_cast<uint16_t>((u + 0x7FFF + (u >> 16 & 1)) >> 16);
}
template <int Count>
struct alignas(64) Halves {
  uint16_t of[Count];
};
constexpr Halves<32> twice(const float (&table)[16]) {
  Halves<32> out{};
  for (int i = 0; i < 32; ++i) out.of[i] = half_of(table[i % 16]);
  return out;
}
template <int Mantissa, int Bias>
constexpr Halves<128> sizes() {
  constexpr int steps = 1 << Mantissa;
  Halves<128> out{};
  for (int i = 0; i < 128; ++i) {
    float x = static_cast<float>(i < steps ? i : steps + i % steps) / steps;
    for (int e = 1; e < Bias; ++e) x /= 2;
    for (int e = 1; e < i / steps; ++e) x *= 2;
    out.of[i] = half_of(x);
  }
  return out;
}
constexpr Halves<32> kNF4Table = twice(kNF4), kFP4Table = twice(kFP4);
constexpr const uint16_t *kNF4Halves = kNF4Table.of, *kFP4Halves = kFP4Table.of;
#endif

// How codes become values, the four of a quad, and pairs of bf16: of the first two K, and of the others.  A quad's bytes
// are its first, third, second and fourth K, so that each half of a word has one K of a pair.  Codes of 4 bits are entries
// of a table.
template <Kind K>
struct Decoder {
  static constexpr int kBits = 4;
  FW_INLINE static void values(const uint8_t* codes, int q, F32x16 (&out)[4]) {
    const float* table = K == Kind::nf4 ? kNF4 : kFP4;
    const I32x16 w = word(codes, q);
    out[0] = pick(table, w);
    out[1] = pick(table, shr<16>(w));
    out[2] = pick(table, shr<8>(w));
    out[3] = pick(table, shr<24>(w));
  }
  FW_INLINE static void pairs(const uint8_t* codes, int q, B8x64 (&out)[2]) {
#if defined(FW_ISA_AVX512)
    const __m512i table = _mm512_load_si512(K == Kind::nf4 ? kNF4Halves : kFP4Halves);
    const I32x16 w = word(codes, q);
    out[0] = {_mm512_permutexvar_epi16(w.v, table)};
    out[1] = {_mm512_permutexvar_epi16(_mm512_srli_epi16(w.v, 8), table)};
#else
    F32x16 w[4];
    values(codes, q, w);
    out[0] = pair_bf16(w[0], w[1]), out[1] = pair_bf16(w[2], w[3]);
#endif
  }

 private:
  FW_INLINE static I32x16 word(const uint8_t* codes, int q) {
    const I32x16 both = as_words(bload(codes + q / 2 * 64));
    return q % 2 ? shr<4>(both) : both;
  }
};

// Codes of 8 bits: with the exponent in its place in float32 a code is 2^(bias - 127) of its value, subnormal or not.
template <int Mantissa, int Bias>
struct ByteDecoder {
  static constexpr int kBits = 8;
  FW_INLINE static void values(const uint8_t* codes, int q, F32x16 (&out)[4]) {
    const I32x16 w = as_words(bload(codes + 64 * q));
    out[0] = value(shl<24>(w));
    out[1] = value(shl<8>(w));
    out[2] = value(shl<16>(w));
    out[3] = value(w);
  }
#if defined(FW_ISA_AVX512)
  FW_INLINE static void pairs(const uint8_t* codes, int q, B8x64 (&out)[2]) {
    const __m512i w = _mm512_loadu_si512(codes + 64 * q);
    out[0] = {halves_of(w, _mm512_slli_epi16(w, 8))};
    out[1] = {halves_of(_mm512_srli_epi16(w, 8), w)};
  }
#else
  FW_INLINE static void pairs(const uint8_t* codes, int q, B8x64 (&out)[2]) {
    F32x16 w[4];
    values(codes, q, w);
    out[0] = pair_bf16(w[0], w[1]), out[1] = pair_bf16(w[2], w[3]);
  }
#endif

 private:
#if defined(FW_ISA_AVX512)
  static constexpr Halves<128> kSizes = sizes<Mantissa, Bias>();

  // bf16 of the codes in the low bytes; their signs are the highest bits of `signs`.
  FW_INLINE static __m512i halves_of(__m512i codes, __m512i signs) {
    const __m512i* table = reinterpret_cast<const __m512i*>(kSizes.of);
    const __m512i low = _mm512_permutex2var_epi16(_mm512_load_si512(table), codes, _mm512_load_si512(table + 1));
    const __m512i high = _mm512_permutex2var_epi16(_mm512_load_si512(table + 2), codes, _mm512_load_si512(table + 3));
    const __mmask32 upper = _mm512_test_epi16_mask(codes, _mm512_set1_epi16(64));
    const __m512i found = _mm512_mask_blend_epi16(upper, low, high);
    return _mm512_ternarylogic_epi32(found, signs, _mm512_set1_epi16(INT16_MIN), 0xF8);  // found | (signs & highest)
  }
#endif

  FW_INLINE static F32x16 value(I32x16 w) {  // of the highest byte of each word
    const I32x16 rest = and_(shr<1 + Mantissa>(w), iset1(127 << (23 - Mantissa)));
    const F32x16 power = as_f32(iset1((254 - Bias) << 23));  // 2^(127 - bias)
    return mul(as_f32(or_(and_(w, iset1(INT32_MIN)), rest)), power);
  }
};
template <>
struct Decoder<Kind::e4m3> : ByteDecoder<3, 7> {};
template <>
struct Decoder<Kind::e5m2> : ByteDecoder<2, 15> {};

// Groups of 32 K that are summed by themselves: a block's, or four where there are no scales.
FW_INLINE int64_t sum_groups(const Structure& s) { return s.number == Number::none ? 4 : s.k() / kGroup; }

// A weight whose codes `Decoder<K>` reads.
template <Kind K>
class FloatCodes : FormedBlocks {
 public:
  static constexpr int kStep = 4;
  using FormedBlocks::FormedBlocks, FormedBlocks::group_bytes;

  // value * scale of four K.
  FW_INLINE void values(const uint8_t* tile, int64_t k, F32x16 (&out)[4]) const {
    const int64_t g = k / kGroup;
    Decoder<K>::values(codes<Decoder<K>::kBits>(tile, g), static_cast<int>(k % kGroup) / 4, out);
    const F32x16 by = scale(tile, g);
#pragma GCC unroll 4
    for (int b = 0; b < 4; ++b) out[b] = mul(by, out[b]);
  }
  // The pairs of quad q of a group of 32 K.
  FW_INLINE void pairs(const uint8_t* tile, int64_t g, int q, B8x64 (&out)[2]) const {
    Decoder<K>::pairs(codes<Decoder<K>::kBits>(tile, g), q, out);
  }
  FW_INLINE F32x16 scale(const uint8_t* tile, int64_t g) const { return number(block(tile, g)); }
  FW_INLINE int64_t groups() const { return sum_groups(s_); }  // that are summed by themselves
};

template <class F>
FW_INLINE void with_codes(Kind kind, F f) {
  switch (base_of(kind)) {
    case Kind::nf4: return f.template operator()<FloatCodes<Kind::nf4>>();
    case Kind::fp4: return f.template operator()<FloatCodes<Kind::fp4>>();
    case Kind::e4m3: return f.template operator()<FloatCodes<Kind::e4m3>>();
    case Kind::e5m2: return f.template operator()<FloatCodes<Kind::e5m2>>();
    default: return;
  }
}

// Few tokens: tiles are opened in registers and multiplied at once, several side by side: a sum is a chain of
// instructions that wait for each other.
constexpr int64_t kAheadOfTile = 2048;
template <class W>
struct CodeRows {
  template <int Tiles, int Tokens>
  static void run(const LinearJob& job, const Spot& at) {
    const W weight(job.kind);
    const int64_t blocks = weight.groups(), bytes = tile_bytes(job.kind, job.k);
    F32x16 total[Tiles][Tokens];
    clear(total);
    const uint8_t* x = at.panel;
    for (int64_t b = 0; b < job.k / kGroup; b += blocks) {
      F32x16 acc[Tiles][Tokens];
      clear(acc);
      const int64_t end = b + blocks < job.k / kGroup ? b + blocks : job.k / kGroup;
      for (int64_t g = b; g < end; ++g, x += 64 * Tokens) {
        if (at.stream.ahead) prefetch_side_by_side<Tiles>(at, bytes, g * weight.group_bytes(), weight.group_bytes());
#pragma GCC unroll 8
        for (int q = 0; q < kGroup / 4; ++q) add_quad(weight, at.tile, bytes, g, q, x, acc);
      }
      each<Tiles>([&](auto i) FW_LAMBDA {
        const F32x16 by = weight.scale(at.tile + bytes * i, b);
        each<Tokens>([&](auto t) FW_LAMBDA { total[i][t] = fma(acc[i][t], by, total[i][t]); });
      });
    }
    finish<Tiles, Tokens>(job, at, total);
  }

 private:
  // Each tile is a stream; where one ends, the tile that follows all of these is prefetched.
  template <int Tiles>
  FW_INLINE static void prefetch_side_by_side(const Spot& at, int64_t bytes, int64_t done, int64_t count) {
    const int64_t next = done + kAheadOfTile, place = next < bytes ? next : next + (Tiles - 1) * bytes;
    each<Tiles>([&](auto i) FW_LAMBDA {
      const uint8_t* from = at.tile + i * bytes + place;
      for (int64_t line = 0; line < count; line += 64) __builtin_prefetch(from + line);
    });
  }

  template <int Tiles, int Tokens>
  FW_INLINE static void add_quad(const W& weight, const uint8_t* tile, int64_t bytes, int64_t g, int q, const uint8_t* x,
                                 F32x16 (&acc)[Tiles][Tokens]) {
    B8x64 w[Tiles][2];
    each<Tiles>([&](auto i) FW_LAMBDA { weight.pairs(tile + bytes * i, g, q, w[i]); });
    each<2>([&](auto pair) FW_LAMBDA {
      each<Tokens>([&](auto t) FW_LAMBDA {
        const B8x64 xs = set4(x + 64 * t + 8 * q + 4 * pair);
        each<Tiles>([&](auto i) FW_LAMBDA { acc[i][t] = dot_bf16(acc[i][t], w[i][pair], xs); });
      });
    });
  }
};

// Many tokens: a stretch of some tiles is opened to pairs, then multiplied with every panel.
constexpr int64_t kPairK = 1024;  // whole blocks
constexpr int kPairs = kGroup / 2;
struct PairTile {
  alignas(64) uint8_t pairs[kPairK / 2 * 64];
  float scales[kPairK / kGroup * kLanes];  // of the blocks
};

template <class W>
void open_pairs(Kind kind, const uint8_t* tile, int64_t k, int64_t count, PairTile& to) {
  const W weight(kind);
  for (int64_t quad = 0; quad < count / 4; ++quad) {
    B8x64 w[2];
    weight.pairs(tile, (k + quad * 4) / kGroup, static_cast<int>(quad % (kGroup / 4)), w);
    bstore(to.pairs + quad * 128, w[0]);
    bstore(to.pairs + quad * 128 + 64, w[1]);
  }
  for (int64_t g = 0; g < count / kGroup; g += weight.groups())
    store(to.scales + g / weight.groups() * kLanes, weight.scale(tile, k / kGroup + g));
}

// `pairs` are summed by themselves.
template <int Tiles, int Tokens>
FW_INLINE void multiply_some(const PairTile* tiles, const uint8_t* x, int64_t count, int64_t pairs, float* sums, bool first) {
  F32x16 total[Tiles][Tokens];
  resume(sums, first, total);
  const int64_t groups = count / kGroup, each_block = pairs / kPairs;
  for (int64_t b = 0; b * each_block < groups; ++b) {
    F32x16 acc[Tiles][Tokens];
    clear(acc);
    const int64_t end = (b + 1) * each_block < groups ? (b + 1) * each_block : groups;
    for (int64_t g = b * each_block; g < end; ++g)
#pragma GCC unroll 4
      for (int pair = 0; pair < kPairs; ++pair) {
        B8x64 w[Tiles];
        each<Tiles>([&](auto i) FW_LAMBDA { w[i] = bload(tiles[i].pairs + (g * kPairs + pair) * 64); });
        each<Tokens>([&](auto t) FW_LAMBDA {
          const B8x64 xs = set4(x + (g * Tokens + t) * 64 + 4 * pair);
          each<Tiles>([&](auto i) FW_LAMBDA { acc[i][t] = dot_bf16(acc[i][t], w[i], xs); });
        });
      }
    each<Tiles>([&](auto i) FW_LAMBDA {
      const F32x16 by = load(tiles[i].scales + b * kLanes);
      each<Tokens>([&](auto t) FW_LAMBDA { total[i][t] = fma(acc[i][t], by, total[i][t]); });
    });
  }
  leave(sums, total);
}

struct PairPanel {
  const uint8_t* tokens;
  int64_t pairs;  // that are summed by themselves
};

template <int Tokens>
void multiply_panel(const PairTile* opened, int64_t tiles, const PairPanel& x, int64_t count, float* sums, bool first) {
  int64_t i = 0;
  const auto sums_of = [&](int64_t tile) { return sums + tile * kSumTokens * kLanes; };
  for (; i + kTiles <= tiles; i += kTiles) multiply_some<kTiles, Tokens>(opened + i, x.tokens, count, x.pairs, sums_of(i), first);
  if constexpr (kTiles > 1)
    for (; i < tiles; ++i) multiply_some<1, Tokens>(opened + i, x.tokens, count, x.pairs, sums_of(i), first);
}

using PanelInner = decltype(&multiply_panel<1>);
template <int... T>
constexpr auto panel_inners(std::integer_sequence<int, T...>) {
  struct {
    PanelInner all[sizeof...(T)];
  } inners{{multiply_panel<T + 1>...}};
  return inners;
}
constexpr auto kPanelInners = panel_inners(std::make_integer_sequence<int, kTokens>{});

// Of the row path: as many tokens as it takes, and as a panel may have.
constexpr int kCodeRows = kRowTokens < kTokens ? kRowTokens : kTokens;
template <class W>
constexpr Inners kCodeInners = inners<CodeRows<W>, kRowTiles>(std::make_integer_sequence<int, kCodeRows>{});

struct PairPath {
  static constexpr int64_t kK = kPairK;
  using Tile = PairTile;

  static PairPanel panel(const LinearJob& job, int64_t token, int64_t k, int64_t size) {
    return {job.panels + token * token_bytes(Mode::bf16, job.k) + k / kGroup * size * 64, sum_groups(structure_of(job.kind)) * kPairs};
  }
  static PanelInner multiply(int64_t size) { return kPanelInners.all[size - 1]; }

  void (*open)(Kind kind, const uint8_t* tile, int64_t k, int64_t count, PairTile& to);
};

template <class W>
void open_floats(Kind kind, const uint8_t* tile, int64_t k, int64_t count, float* to) {
  const W weight(kind);
  for (const int64_t end = k + count; k < end; k += W::kStep, to += W::kStep * kLanes) {
    F32x16 w[W::kStep];
    weight.values(tile, k, w);
    each<W::kStep>([&](auto j) FW_LAMBDA { store(to + j * kLanes, w[j]); });
  }
}

}  // namespace

void multiply_codes(const LinearJob& job, Run tiles, Range panels) {
  with_codes(job.kind, [&]<class W>() {
    if (by_blocks(job))
      multiply_stretches(job, tiles, panels, PairPath{open_pairs<W>});
    else
      walk(job, kCodeInners<W>, tiles, panels);
  });
}

void multiply_codes_floats(const LinearJob& job, Run tiles, Range panels) {
  with_codes(job.kind, [&]<class W>() { multiply_floats(job, tiles, panels, open_floats<W>); });
}

void unpack_codes(const LinearJob& job, int64_t row, float* out) {
  with_codes(job.kind, [&]<class W>() { unpack_row<W>(job, row, out); });
}

}  // namespace flyweight::FW_ISA
