// Python entry points of elementwise.cpp.
#include "bindings.h"

namespace flyweight {

void bind_elementwise(nb::module_& m) { (void)m; }

}  // namespace flyweight
