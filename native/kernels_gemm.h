// Entry points of gemm_dense.cpp, gemm_grouped.cpp and pack.cpp.  Included by kernels.h.
#pragma once

#include <cstdint>

#include "pool.h"

namespace flyweight {}
