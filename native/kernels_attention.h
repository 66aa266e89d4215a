// Entry points of attention.cpp and rope_store.cpp.  Included by kernels.h.
#pragma once

#include <cstdint>

#include "pool.h"

namespace flyweight {}
