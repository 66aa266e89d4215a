// What the binding files share: the handle to pool and kernels that every call gets first, and typed array arguments.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <initializer_list>
#include <new>

#include "../arithmetic.h"
#include "../kernels.h"

namespace flyweight {

namespace nb = nanobind;

// The threads of one CpuOps and the target it runs on; Python's `_native.Pool`.
struct Engine {
  Pool pool;
  const Kernels* kernels;
};

// Input arrays: nanobind refuses another dtype, rank or a gap between elements with a TypeError, never copies
// (bind with nb::arg(...).noconvert()).
template <class T, class... Shape>
using In = nb::ndarray<const T, nb::c_contig, nb::device::cpu, Shape...>;
template <class T, class... Shape>
using InOut = nb::ndarray<T, nb::c_contig, nb::device::cpu, Shape...>;
using Vec = nb::ndim<1>;
using Mat = nb::ndim<2>;
using Cube = nb::ndim<3>;
template <class T>
using Out = nb::ndarray<nb::numpy, T>;

constexpr std::align_val_t kAlign{64};  // a cache line and a zmm

// A fresh, uninitialised, 64-byte aligned NumPy array.
template <class T>
Out<T> fresh(std::initializer_list<size_t> shape) {
  size_t size = 1;
  for (const size_t extent : shape) size *= extent;
  T* data = static_cast<T*>(::operator new(size * sizeof(T), kAlign));
  nb::capsule owner(data, [](void* p) noexcept { ::operator delete(p, kAlign); });
  return Out<T>(data, shape, owner);
}

// Working memory of one call.
template <class T>
class Aligned {
 public:
  explicit Aligned(size_t size) : data_(static_cast<T*>(::operator new(size * sizeof(T), kAlign))) {}
  ~Aligned() { ::operator delete(data_, kAlign); }
  Aligned(const Aligned&) = delete;
  Aligned& operator=(const Aligned&) = delete;
  T* data() const { return data_; }

 private:
  T* data_;
};

template <class A>
int64_t extent(const A& array, size_t axis) {
  return static_cast<int64_t>(array.shape(axis));
}

template <class A, class B>
bool same_shape(const A& a, const B& b) {
  return a.shape(0) == b.shape(0) && a.shape(1) == b.shape(1);
}

void require(bool ok, const char* what);  // raises ValueError(what)

// While it lives, kernels may run: the interpreter is free for others, the arithmetic is the kernels' own.
class Computing {
  const nb::gil_scoped_release release_;
  const DefaultArithmetic arithmetic_;
};

void bind_attention(nb::module_& m);
void bind_calibrate(nb::module_& m);
void bind_elementwise(nb::module_& m);
void bind_encode(nb::module_& m);
void bind_gemm(nb::module_& m);
void bind_moe(nb::module_& m);
void bind_sample(nb::module_& m);
void bind_stack(nb::module_& m);
void bind_text(nb::module_& m);

}  // namespace flyweight
