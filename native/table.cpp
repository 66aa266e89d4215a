// Compiled per target: gathers the tables of this target's kernel files.
#include "kernels.h"

#define FW_NAME_OF(isa) #isa
#define FW_NAME(isa) FW_NAME_OF(isa)

namespace flyweight::FW_ISA {

extern const AttentionKernels attention_kernels;
extern const GemmKernels gemm_kernels;
#if defined(FW_ISA_AMX)  // what has no matrix to multiply is as it is without AMX
}
namespace flyweight::avx512 {
#endif
extern const ElementwiseKernels elementwise_kernels;
extern const MoeKernels moe_kernels;
extern const SampleKernels sample_kernels;
#if defined(FW_ISA_AMX)
}
namespace flyweight::FW_ISA {
using avx512::elementwise_kernels, avx512::moe_kernels, avx512::sample_kernels;
#endif

extern const Kernels kernels;
const Kernels kernels = {
    .isa = FW_NAME(FW_ISA),
    .elementwise = &elementwise_kernels,
    .attention = &attention_kernels,
    .gemm = &gemm_kernels,
    .moe = &moe_kernels,
    .sample = &sample_kernels,
};

}  // namespace flyweight::FW_ISA
