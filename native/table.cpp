// Compiled per target: gathers the tables of this target's kernel files.  A target that only multiplies matrices in another
// way takes what else it needs from the one it builds on.
#include "kernels.h"

#define FW_NAME_OF(isa) #isa
#define FW_NAME(isa) FW_NAME_OF(isa)
#if defined(FW_BASE)
#define FW_REST FW_BASE
#else
#define FW_REST FW_ISA
#endif

namespace flyweight::FW_REST {

extern const AttentionKernels attention_kernels;
extern const ElementwiseKernels elementwise_kernels;
extern const EncodeKernels encode_kernels;
extern const GramKernels gram_kernels;
extern const MoeKernels moe_kernels;
extern const SampleKernels sample_kernels;
extern const SweepKernels sweep_kernels;

}  // namespace flyweight::FW_REST

namespace flyweight::FW_ISA {

extern const GemmKernels gemm_kernels;
#if defined(FW_ISA_AMX)
extern const AttentionKernels attention_kernels;
#else
using FW_REST::attention_kernels;
#endif

extern const Kernels kernels;
const Kernels kernels = {
    .isa = FW_NAME(FW_ISA),
    .elementwise = &FW_REST::elementwise_kernels,
    .attention = &attention_kernels,
    .gemm = &gemm_kernels,
    .moe = &FW_REST::moe_kernels,
    .sample = &FW_REST::sample_kernels,
    .encode = &FW_REST::encode_kernels,
    .gram = &FW_REST::gram_kernels,
    .sweep = &FW_REST::sweep_kernels,
};

}  // namespace flyweight::FW_ISA
