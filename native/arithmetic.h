// The floating-point state that kernels compute in, whatever the calling thread's is.
//
// Round to nearest, subnormal numbers kept.  Python extensions built with -ffast-math switch the thread that loads them
// to flushing subnormals; if some threads of a job flushed and others did not, bits would depend on who took a chunk.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace flyweight {

class DefaultArithmetic {
 public:
  DefaultArithmetic() : before_(get()) {
    if (before_ != kDefault) set(kDefault);
  }
  ~DefaultArithmetic() {
    if (before_ != kDefault) set(before_);
  }
  DefaultArithmetic(const DefaultArithmetic&) = delete;
  DefaultArithmetic& operator=(const DefaultArithmetic&) = delete;

 private:
#if defined(__x86_64__)
  using State = uint32_t;
  static constexpr State kDefault = 0x1F80;  // MXCSR: every exception masked, nothing else
  static State get() { return _mm_getcsr() & ~State{0x3F}; }  // without the sticky exception flags
  static void set(State state) { _mm_setcsr(state); }
#elif defined(__aarch64__)
  using State = uint64_t;
  static constexpr State kDefault = 0;  // FPCR
  static State get() {
    State state;
    asm volatile("mrs %0, fpcr" : "=r"(state));
    return state;
  }
  static void set(State state) { asm volatile("msr fpcr, %0" ::"r"(state)); }
#else
  using State = int;
  static constexpr State kDefault = 0;
  static State get() { return kDefault; }
  static void set(State) {}
#endif

  const State before_;
};

}  // namespace flyweight
