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
constexpr Halves<64> bytes_of(const Halves<128>& halves, int shift) {  // two to a word
  Halves<64> out{};
  for (int i = 0; i < 64; ++i)
    out.of[i] = static_cast<uint16_t>((halves.of[2 * i] >> shift & 255) | (halves.of[2 * i + 1] >> shift & 255) << 8);
  return out;
}
constexpr Halves<32> kNF4Table = twice(kNF4), kFP4Table = twice(kFP4);
constexpr const uint16_t *kNF4Halves = kNF4Table.of, *kFP4Halves = kFP4Table.of;
#endif

// Codes of `N` blocks at a time.
template <int N>
struct Streams {
  const uint8_t* at[N];
};
template <int N>
struct QuadPairs {
  B8x64 of[2][N];  // bf16 of the first two K of a quad, and of the others
};

template <class D, int N>
FW_INLINE void round_pairs(const Streams<N>& codes, int q, QuadPairs<N>& out) {
  each<N>([&](auto n) FW_LAMBDA {
    F32x16 w[4];
    D::values(codes.at[n], q, w);
    out.of[0][n] = pair_bf16(w[0], w[1]), out.of[1][n] = pair_bf16(w[2], w[3]);
  });
}

// How codes become values, the four of a quad, and pairs of bf16.  A quad's bytes are its first, third, second and fourth
// K, so that each half of a word has one K of a pair.  Codes of 4 bits are entries of a table.
template <Kind K, bool Bytes>
struct Decoder {
  static constexpr int kBits = 4, kChains = 4;
  FW_INLINE static void values(const uint8_t* codes, int q, F32x16 (&out)[4]) {
    const float* table = K == Kind::nf4 ? kNF4 : kFP4;
    const I32x16 both = as_words(bload(codes + q / 2 * 64)), w = q % 2 ? shr<4>(both) : both;
    out[0] = pick(table, w);
    out[1] = pick(table, shr<16>(w));
    out[2] = pick(table, shr<8>(w));
    out[3] = pick(table, shr<24>(w));
  }
  template <int N>
  FW_INLINE static void pairs(const Streams<N>& codes, int q, QuadPairs<N>& out) {
#if defined(FW_ISA_AVX512)
    const __m512i table = _mm512_load_si512(K == Kind::nf4 ? kNF4Halves : kFP4Halves);
    each<N>([&](auto n) FW_LAMBDA { out.of[0][n] = bload(codes.at[n] + q / 2 * 64); });
    each<N>([&](auto n) FW_LAMBDA { out.of[1][n] = {_mm512_srli_epi16(out.of[0][n].v, q % 2 ? 12 : 8)}; });
    if (q % 2) each<N>([&](auto n) FW_LAMBDA { out.of[0][n] = {_mm512_srli_epi16(out.of[0][n].v, 4)}; });
    each<2>([&](auto i) FW_LAMBDA {
      each<N>([&](auto n) FW_LAMBDA { out.of[i][n] = {_mm512_permutexvar_epi16(out.of[i][n].v, table)}; });
    });
#else
    round_pairs<Decoder>(codes, q, out);
#endif
  }
};

// Codes of 8 bits: with the exponent in its place in float32 a code is 2^(bias - 127) of its value, subnormal or not.
template <int Mantissa, int Bias, bool Bytes>
struct ByteDecoder {
  static constexpr int kBits = 8, kChains = 2;
  FW_INLINE static void values(const uint8_t* codes, int q, F32x16 (&out)[4]) {
    const I32x16 w = as_words(bload(codes + 64 * q));
    out[0] = value(shl<24>(w));
    out[1] = value(shl<8>(w));
    out[2] = value(shl<16>(w));
    out[3] = value(w);
  }
  template <int N>
  FW_INLINE static void pairs(const Streams<N>& codes, int q, QuadPairs<N>& out) {
#if defined(FW_ISA_AVX512)
    __m512i w[N];
    each<N>([&](auto n) FW_LAMBDA { w[n] = load_once(codes.at[n] + 64 * q); });
    Bytes ? look_up_bytes(w, out) : look_up_halves(w, out);
#else
    round_pairs<ByteDecoder>(codes, q, out);
#endif
  }

 private:
#if defined(FW_ISA_AVX512)
  static constexpr Halves<128> kSizes = sizes<Mantissa, Bias>();
  static constexpr Halves<64> kLow = bytes_of(kSizes, 0), kHigh = bytes_of(kSizes, 8);

  // There is one load a cycle, and compilers like to repeat one instead of copying a register.
  FW_INLINE static __m512i load_once(const uint8_t* p) {
    __m512i v = _mm512_loadu_si512(p);
    asm("" : "+v"(v));
    return v;
  }

  // The low and the high byte of a size, each from a table of 128; then first with first, second with second.
  template <int N>
  FW_INLINE static void look_up_bytes(const __m512i (&w)[N], QuadPairs<N>& out) {
    const __m512i low_bytes = _mm512_set1_epi16(255), sign = _mm512_set1_epi8(INT8_MIN);
    __m512i low[N], high[N];
    each<N>([&](auto n) FW_LAMBDA { high[n] = byte_of(kHigh, w[n]); });
    each<N>([&](auto n) FW_LAMBDA { low[n] = byte_of(kLow, w[n]); });
    each<N>([&](auto n) FW_LAMBDA { high[n] = _mm512_ternarylogic_epi32(high[n], w[n], sign, 0xF8); });  // high | (w & sign)
    each<N>([&](auto n) FW_LAMBDA { out.of[0][n] = {_mm512_slli_epi16(high[n], 8)}; });
    each<N>([&](auto n) FW_LAMBDA { out.of[1][n] = {_mm512_srli_epi16(low[n], 8)}; });
    each<N>([&](auto n) FW_LAMBDA {  // where the mask is set the first, else the second
      out.of[0][n] = {_mm512_ternarylogic_epi32(low[n], out.of[0][n].v, low_bytes, 0xE4)};
      out.of[1][n] = {_mm512_ternarylogic_epi32(out.of[1][n].v, high[n], low_bytes, 0xE4)};
    });
  }
  FW_INLINE static __m512i byte_of(const Halves<64>& bytes, __m512i codes) {
    const __m512i* table = reinterpret_cast<const __m512i*>(bytes.of);
    const __m512i first = _mm512_load_si512(table), second = _mm512_load_si512(table + 1);
    asm("vpermi2b %2, %1, %0" : "+v"(codes) : "v"(first), "v"(second));
    return codes;
  }

  template <int N>
  FW_INLINE static void look_up_halves(const __m512i (&w)[N], QuadPairs<N>& out) {
    each<N>([&](auto n) FW_LAMBDA {
      out.of[0][n] = {halves_of(w[n], _mm512_slli_epi16(w[n], 8))};
      out.of[1][n] = {halves_of(_mm512_srli_epi16(w[n], 8), w[n])};
    });
  }
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
struct Decoder<Kind::e4m3, false> : ByteDecoder<3, 7, false> {};
template <>
struct Decoder<Kind::e4m3, true> : ByteDecoder<3, 7, true> {};
template <>
struct Decoder<Kind::e5m2, false> : ByteDecoder<2, 15, false> {};
template <>
struct Decoder<Kind::e5m2, true> : ByteDecoder<2, 15, true> {};

// Groups of 32 K that are summed by themselves: a block's, or four where there are no scales.
FW_INLINE int64_t sum_groups(const Structure& s) { return s.number == Number::none ? 4 : s.k() / kGroup; }

// A weight whose codes `Decoder<K, Bytes>` reads.
template <Kind K, bool Bytes = false>
class FloatCodes : FormedBlocks {
 public:
  using D = Decoder<K, Bytes>;
  static constexpr int kStep = 4, kChains = D::kChains;
  using FormedBlocks::FormedBlocks, FormedBlocks::group_bytes;

  // value * scale of four K.
  FW_INLINE void values(const uint8_t* tile, int64_t k, F32x16 (&out)[4]) const {
    const int64_t g = k / kGroup;
    D::values(codes<D::kBits>(tile, g), static_cast<int>(k % kGroup) / 4, out);
    const F32x16 by = scale(tile, g);
#pragma GCC unroll 4
    for (int b = 0; b < 4; ++b) out[b] = mul(by, out[b]);
  }
  // Where the codes of a group of 32 K begin, and the pairs of its quad q.
  FW_INLINE const uint8_t* codes_of(const uint8_t* tile, int64_t g) const { return codes<D::kBits>(tile, g); }
  template <int N>
  FW_INLINE static void pairs(const Streams<N>& group, int q, QuadPairs<N>& out) {
    D::pairs(group, q, out);
  }
  FW_INLINE F32x16 scale(const uint8_t* tile, int64_t g) const { return number(block(tile, g)); }
  FW_INLINE int64_t groups() const { return sum_groups(s_); }  // that are summed by themselves
};

// An instruction of AVX-512 VBMI looks up 128 bytes.  Of all processors with BF16, Cooper Lake alone lacks it; sanitized
// builds test what is done there.
template <Kind K, class F>
FW_INLINE void with_bytes(F f) {
#if defined(FW_ISA_AVX512) && !defined(FW_FEW_WIDTHS)
  if (__builtin_cpu_supports("avx512vbmi")) return f.template operator()<FloatCodes<K, true>>();
#endif
  f.template operator()<FloatCodes<K, false>>();
}

template <class F>
FW_INLINE void with_codes(Kind kind, F f) {
  switch (base_of(kind)) {
    case Kind::nf4: return f.template operator()<FloatCodes<Kind::nf4>>();
    case Kind::fp4: return f.template operator()<FloatCodes<Kind::fp4>>();
    case Kind::e4m3: return with_bytes<Kind::e4m3>(f);
    case Kind::e5m2: return with_bytes<Kind::e5m2>(f);
    default: return;
  }
}

// Few tokens: a tile is opened in registers and multiplied at once.  A sum is a chain of instructions that wait for each
// other, so the sums of some blocks are made side by side.  More blocks would be further apart than the distance of prefetch.
#if defined(FW_ISA_AVX512)
constexpr int kMostChains = 4;
#elif defined(FW_ISA_SCALAR)
constexpr int kMostChains = 1;
#else
constexpr int kMostChains = 2;
#endif
// Further than where codes are read in order, as the last of the blocks is read as early as the first.
constexpr int64_t kBlocksAhead = 12 << 10;
template <class W>
struct CodeRows {
  template <int Tiles, int Tokens>
  static void run(const LinearJob& job, const Spot& at) {
    static_assert(Tiles == 1);
    const W weight(job.kind);
    F32x16 total[1][Tokens];
    clear(total);
    constexpr int chains = (W::kChains < kMostChains ? W::kChains : kMostChains) / Tokens, blocks = chains > 1 ? chains : 1;
    const int64_t each_block = weight.groups(), groups = job.k / kGroup;
    int64_t g = 0;
    for (; g + blocks * each_block <= groups; g += blocks * each_block)
      add_blocks<blocks>(weight, at, {g, g + each_block}, total[0]);
    for (; g < groups; g += each_block)
      add_blocks<1>(weight, at, {g, g + each_block < groups ? g + each_block : groups}, total[0]);
    finish<1, Tokens>(job, at, total);
  }

 private:
  // The block of groups `first`, and the `Blocks` - 1 that follow.
  template <int Blocks, int Tokens>
  FW_INLINE static void add_blocks(const W& weight, const Spot& at, Range first, F32x16 (&total)[Tokens]) {
    F32x16 acc[Blocks][Tokens];
    clear(acc);
    const int64_t count = first.end - first.begin, bytes = weight.group_bytes();
    for (int64_t g = 0; g < count; ++g) {
      if (at.ahead) prefetch(at.tile + (first.begin + g * Blocks) * bytes + kBlocksAhead, Blocks * bytes);
      Streams<Blocks> codes;
      each<Blocks>([&](auto b) FW_LAMBDA { codes.at[b] = weight.codes_of(at.tile, first.begin + b * count + g); });
      const uint8_t* x = at.panel + (first.begin + g) * 64 * Tokens;
#pragma GCC unroll 8
      for (int q = 0; q < kGroup / 4; ++q) add_quad<Blocks>(codes, q, x + 8 * q, count * 64 * Tokens, acc);
    }
    each<Blocks>([&](auto b) FW_LAMBDA {
      const F32x16 by = weight.scale(at.tile, first.begin + b * count);
      each<Tokens>([&](auto t) FW_LAMBDA { total[t] = fma(acc[b][t], by, total[t]); });
    });
  }

  // `x`: of the first block; those of the others are `stride` bytes further each.
  template <int Blocks, int Tokens>
  FW_INLINE static void add_quad(const Streams<Blocks>& codes, int q, const uint8_t* x, int64_t stride,
                                 F32x16 (&acc)[Blocks][Tokens]) {
    QuadPairs<Blocks> w;
    W::pairs(codes, q, w);
    each<2>([&](auto pair) FW_LAMBDA {
      each<Tokens>([&](auto t) FW_LAMBDA {
        each<Blocks>([&](auto b) FW_LAMBDA {
          acc[b][t] = dot_bf16(acc[b][t], w.of[pair][b], set4(x + b * stride + 64 * t + 4 * pair));
        });
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
  for (int64_t g = 0; g < count / kGroup; ++g) {
    const Streams<1> codes{{weight.codes_of(tile, k / kGroup + g)}};
#pragma GCC unroll 8
    for (int q = 0; q < kGroup / 4; ++q) {
      QuadPairs<1> w;
      W::pairs(codes, q, w);
      each<2>([&](auto pair) FW_LAMBDA { bstore(to.pairs + ((g * 8 + q) * 2 + pair) * 64, w.of[pair][0]); });
    }
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
constexpr Inners kCodeInners = inners<CodeRows<W>, 1>(std::make_integer_sequence<int, kCodeRows>{});

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

void multiply_codes(const LinearJob& job, Range tiles, Range panels) {
  with_codes(job.kind, [&]<class W>() {
    if (by_blocks(job))
      multiply_stretches(job, tiles, panels, PairPath{open_pairs<W>});
    else
      walk(job, kCodeInners<W>, tiles, panels);
  });
}

void multiply_codes_floats(const LinearJob& job, Range tiles, Range panels) {
  with_codes(job.kind, [&]<class W>() { multiply_floats(job, tiles, panels, open_floats<W>); });
}

void unpack_codes(const LinearJob& job, int64_t row, float* out) {
  with_codes(job.kind, [&]<class W>() { unpack_row<W>(job, row, out); });
}

}  // namespace flyweight::FW_ISA
