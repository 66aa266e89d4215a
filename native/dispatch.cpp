// Which targets were compiled in, and which of them this machine can run.
#include "kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif
#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace flyweight {

#define FW_TARGET(isa) \
  namespace isa { \
  extern const Kernels kernels; \
  }
FW_TARGET(scalar)
#if defined(__x86_64__)
FW_TARGET(avx2)
FW_TARGET(avxvnni)
FW_TARGET(avx512)
FW_TARGET(amx)
#elif defined(__aarch64__)
FW_TARGET(neon)
#endif
#undef FW_TARGET

namespace {

#if defined(__x86_64__)
// __builtin_cpu_supports also checks whether the operating system saves the wide registers.
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
         __builtin_cpu_supports("bmi2");
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16");
}
bool has_avxvnni() {
  uint32_t a = 0, b = 0, c = 0, d = 0;
  return has_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 4);
}
// The kernel keeps tile registers from a process until it requests them; what it grants holds for all threads.
bool has_amx() {
  constexpr uint32_t kAll = 1u << 24 | 1u << 25 | 1u << 22 | 1u << 23;  // of leaf 7, edx: tiles, int8, bf16; AVX512-FP16
  uint32_t a = 0, b = 0, c = 0, d = 0;
  if (!has_avx512() || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  if ((d & kAll) != kAll) return false;
#if defined(__linux__)
  constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
#else
  return false;
#endif
}
#elif defined(__aarch64__)
bool has_neon() {
#if defined(__linux__)
  const unsigned long caps = getauxval(AT_HWCAP);
  return (caps & HWCAP_ASIMDDP) != 0 && (caps & HWCAP_FPHP) != 0 && (caps & HWCAP_ASIMDHP) != 0;
#else
  return true;  // every 64-bit Apple machine
#endif
}
#endif

}  // namespace

Targets targets() {
  Targets found{{&scalar::kernels}, 1};
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (has_avx2()) found.list[found.count++] = &avx2::kernels;
  if (has_avxvnni()) found.list[found.count++] = &avxvnni::kernels;
  if (has_avx512()) found.list[found.count++] = &avx512::kernels;
  if (has_amx()) found.list[found.count++] = &amx::kernels;
#elif defined(__aarch64__)
  if (has_neon()) found.list[found.count++] = &neon::kernels;
#endif
  return found;
}

}  // namespace flyweight
