// Compiled per target with the kernels, in test builds only.
#include "simd_probe.h"

#include <initializer_list>

#include "../quotients.h"
#include "../simd.h"

namespace flyweight::FW_ISA {
namespace {

struct Writer {
  ProbeOutput& out;

  void word(uint32_t w) { out.word[out.used++] = w; }
  void put(F32x16 v) {
    float lane[16];
    store(lane, v);
    for (const float x : lane) {
      uint32_t w;
      std::memcpy(&w, &x, 4);
      word(std::isnan(x) ? 0x7FC00000 : w);  // which NaN is not promised
    }
  }
  void put(I32x16 v) {
    int32_t lane[16];
    istore(lane, v);
    for (const int32_t x : lane) word(static_cast<uint32_t>(x));
  }
  void put(B8x64 v) {
    uint8_t byte[64];
    bstore(byte, v);
    for (const uint8_t x : byte) word(x);
  }
};

void floats(const ProbeInput& in, Writer& w) {
  const F32x16 a = load(in.a), b = load(in.b), c = load(in.c);
  for (const F32x16 v : {zero(), set1(in.a[0]), a, load_tail(in.a, in.tail), add(a, b), sub(a, b), mul(a, b), div(a, b),
                         fma(a, b, c), min(a, b), max(a, b), abs(a), sqrt(a), rint(a), select_gt(a, b, b, c)})
    w.put(v);
  float tail[16];
  store(tail, b);
  store_tail(tail, a, in.tail);
  w.put(load(tail));
  w.word(mask_gt(a, b));
  w.put(set1(hsum(a)));
  w.put(set1(hmax(a)));
  w.put(exp(a));
  w.put(tanh(a));
}

void integers(const ProbeInput& in, Writer& w) {
  const I32x16 i = iload(in.i), j = iload(in.j);
  for (const I32x16 v : {izero(), iset1(in.i[3]), add(i, j), sub(i, j), mul(i, j), and_(i, j), or_(i, j), xor_(i, j),
                         imin(i, j), imax(i, j), shl<5>(i), shr<5>(i), sar<5>(i), as_i32(load(in.a))})
    w.put(v);
  w.put(to_f32(i));
  w.put(to_i32(mul(to_f32(sar<4>(i)), set1(0.37f))));
  w.word(static_cast<uint32_t>(hsum(sar<8>(i))));
}

void narrow(const ProbeInput& in, Writer& w) {
  const auto* s = reinterpret_cast<const int8_t*>(in.u);
  w.put(load_i8(s));
  w.put(load_u8(in.u));
  w.put(load_i8_i32(s));
  w.put(load_u8_i32(in.u));
  w.put(load_u16(in.half));
  w.put(load_f16(in.half));
  w.put(load_bf16(in.half));
  w.put(bf16_bits(load(in.a)));
  uint16_t half[16];
  store_f16(half, load(in.b));
  w.put(load_f16(half));
  store_bf16(half, load(in.b));
  w.put(load_bf16(half));
  store_u16(half, and_(iload(in.i), iset1(65535)));
  w.put(load_u16(half));
  int8_t bytes[16];
  store_i8(bytes, load_i8_i32(s + 16));
  w.put(load_i8_i32(bytes));
}

void dots(const ProbeInput& in, Writer& w, float* bf16) {
  const B8x64 u = bload(in.u), v = bload(in.v);
  const I32x16 acc = iload(in.i);
  for (const B8x64 x : {u, set4(in.u + 4), bset1(in.u[7]), band(u, v), bxor(u, v), lookup(in.v, band(u, bset1(15)))})
    w.put(x);
  w.put(dot_u8i8(acc, u, v));
  w.put(dot_u7i8(acc, band(u, bset1(127)), v));
  uint8_t held[64];  // -128 is not allowed on the right of dot_i8i8
  for (int i = 0; i < 64; ++i) held[i] = in.v[i] == 128 ? 129 : in.v[i];
  w.put(dot_i8i8(acc, u, bload(held)));
  for (int i = 0; i < 64; i += 20) {  // four bytes for all lanes
    w.put(dot_u8i8(acc, u, in.v + i));
    w.put(dot_u7i8(acc, band(u, bset1(127)), in.v + i));
    w.put(dot_i8i8(acc, u, held + i));
  }
  // bytes with the exponent of ordinary numbers, so that sums neither overflow nor vanish
  uint8_t x[64], y[64];
  for (int i = 0; i < 64; ++i) {
    x[i] = i % 2 == 0 ? in.u[i] : static_cast<uint8_t>(0x3F | (in.u[i] & 0x80));
    y[i] = i % 2 == 0 ? in.v[i] : static_cast<uint8_t>(0x3F | (in.v[i] & 0x80));
  }
  store(bf16, dot_bf16(load(in.c), bload(x), bload(y)));
}

void run(const ProbeInput& in, ProbeOutput& out) {
  out.used = 0;
  Writer w{out};
  floats(in, w);
  integers(in, w);
  narrow(in, w);
  dots(in, w, out.bf16);
}

void exponential(const float* x, float* y) { store(y, exp(load(x))); }
void hyperbolic_tangent(const float* x, float* y) { store(y, tanh(load(x))); }

bool quotients(const float* x, float divisor, float* y, float* divided) {
  Quotients by(set1(divisor));
  store(y, by.of(load(x)));
  store(divided, div(load(x), set1(divisor)));
  return by.good();
}

}  // namespace

extern const Probe probe;
const Probe probe = {run, exponential, hyperbolic_tangent, quotients};

}  // namespace flyweight::FW_ISA
