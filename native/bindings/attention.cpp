// Python entry points of attention.cpp and rope_store.cpp.  Everything that indexes memory is checked here: slots,
// tables, positions and sizes; the kernels trust them.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include <cmath>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>

#include "../attend_plan.h"
#include "attention.h"
#include "pages.h"

namespace flyweight {

void require_slots(const In<int32_t, Vec>& slots, const KVView& kv) {
  const int64_t limit = kv.blocks * kv.block;
  for (size_t i = 0; i < slots.size(); ++i)
    require(slots.data()[i] >= 0 && slots.data()[i] < limit, "slot outside the KV memory");
}

HeadWeights head_weights(const MaybeFloats& w, int64_t heads, int64_t dim) {
  if (!w) return {};
  const auto size = static_cast<int64_t>(w->size());
  require(size == dim || size == heads * dim, "head norm weights must have the size of one head, or of all heads");
  return {w->data(), size != dim};
}

void require_sequences(const Where& w, const KVView& kv, Sight sight) {
  const auto sequences = static_cast<int64_t>(w.tables.shape(0)), width = static_cast<int64_t>(w.tables.shape(1));
  const int32_t* starts = w.starts.data();
  const int32_t* positions = w.positions.data();
  require(static_cast<int64_t>(w.starts.size()) == sequences + 1 && starts[0] == 0 &&
              starts[sequences] == static_cast<int64_t>(w.positions.size()),
          "starts must run from 0 to T, one more than tables has rows");
  for (int64_t s = 0; s < sequences; ++s) {
    require(starts[s] <= starts[s + 1] && starts[s + 1] <= starts[sequences], "starts must ascend");
    if (starts[s] == starts[s + 1]) continue;
    require(positions[starts[s]] >= 0, "positions must not be negative");
    for (int32_t t = starts[s] + 1; t < starts[s + 1]; ++t)
      require(positions[t - 1] <= positions[t], "positions must ascend within a sequence");
    const int64_t used = positions[starts[s + 1] - 1] / kv.block + 1;
    require(used <= width, "a table is too short for its context");
    for (int64_t i = first_seen(positions[starts[s]], sight) / kv.block; i < used; ++i) {
      const int32_t block = w.tables.data()[s * width + i];
      require(block >= 0 && block < kv.blocks, "a table names a block outside the KV memory");
    }
  }
}

namespace {

using Ints = In<int32_t, Vec>;

constexpr int64_t kMaxHeads = 1 << 16;  // so that no size of a layer passes 63 bits

// heads, block size, k_dim, v_dim, whether in pairs
using LayerShape = std::tuple<int64_t, int64_t, int64_t, int64_t, bool>;

// Without `v`, V is the last v_dim elements of K.
void make_kv(KV* self, Bytes k, MaybeBytes v, int dtype, int64_t blocks, LayerShape shape) {
  const auto [heads, block, k_dim, v_dim, paired] = shape;
  require(dtype >= 0 && dtype <= static_cast<int>(KVType::e5m2), "dtype must be 0 to 6, a KVType");
  require(blocks >= 0 && heads > 0 && block > 0, "blocks, heads and block size must be positive");
  require(blocks <= INT32_MAX / block, "slots must fit 32 bits");
  require(heads <= kMaxHeads, "a layer has at most 65536 KV heads");
  require(k_dim > 0 && v_dim > 0 && k_dim <= kMaxHead && v_dim <= kMaxHead, "head size must be 1 to 1024");
  require(v || v_dim <= k_dim, "V in K must not be wider than K");
  void* values = v ? v->data() : nullptr;
  const KVView view{k.data(), values, static_cast<KVType>(dtype), blocks, heads, block, k_dim, v_dim, !v,
                    paired};
  require(!paired || pairs_fit(view), "pairs need bf16, blocks of whole 16 and even heads");
  require(!coded(view.type) || codes_fit(view), "codes need blocks of whole 16 and even heads");
  require(static_cast<int64_t>(k.size()) >= blocks * view.k_bytes() + kSpare, "K holds too few bytes");
  require(!v || static_cast<int64_t>(v->size()) >= blocks * view.v_bytes() + kSpare, "V holds too few bytes");
  const auto unit = static_cast<uintptr_t>(coded(view.type) ? 4 : element_bytes(view.type) * view.v_step());
  const auto aligned = [&](const void* p) { return reinterpret_cast<uintptr_t>(p) % unit == 0; };
  require(aligned(k.data()) && aligned(values), "K and V must be aligned to their elements");
  new (self) KV{view, std::move(k), std::move(v)};
}

using Norms = std::tuple<MaybeFloats, MaybeFloats, float>;

Out<float> rope_store(Engine& engine, In<float, Mat> qkv, KV& kv, Ints slots, In<float, Mat> cos, In<float, Mat> sin,
                      const Norms& norms) {
  const KVView& view = kv.view;
  const auto tokens = static_cast<int64_t>(qkv.shape(0)), width = static_cast<int64_t>(qkv.shape(1));
  const int64_t left = width - view.heads * view.row(), heads = left / view.k_dim;
  require(left > 0 && left % view.k_dim == 0 && heads % view.heads == 0,
          "qkv is not (Hq + Hk) k_dim + Hk v_dim wide, or (Hq + Hk) k_dim where V is in K");
  require(static_cast<int64_t>(slots.size()) == tokens, "one slot a token is needed");
  require_slots(slots, view);
  const auto half = static_cast<int64_t>(cos.shape(1));
  require(static_cast<int64_t>(cos.shape(0)) == tokens && static_cast<int64_t>(sin.shape(0)) == tokens &&
              static_cast<int64_t>(sin.shape(1)) == half && 2 * half <= view.k_dim,
          "cos and sin must be [T, dim/2], dim at most the head's size");
  const HeadWeights q_norm = head_weights(std::get<0>(norms), heads, view.k_dim);
  const HeadWeights k_norm = head_weights(std::get<1>(norms), view.heads, view.k_dim);
  Out<float> q = fresh<float>({qkv.shape(0), static_cast<size_t>(heads), static_cast<size_t>(view.k_dim)});
  const RopeStoreArgs args{projected_rows(qkv.data(), heads, view), q.data(), view, tokens, heads, slots.data(),
                           cos.data(), sin.data(), half, q_norm, k_norm, std::get<2>(norms)};
  const Computing computing;
  engine.kernels->attention->rope_store(engine.pool, args);
  return q;
}

// scale, window and chunk, softcap, sinks
using Scoring = std::tuple<float, std::tuple<int64_t, int64_t>, float, MaybeFloats>;

Out<float> attend(Engine& engine, Scratch& scratch, In<float, Cube> q, KV& kv, In<int32_t, Vec> positions,
                  In<int32_t, Vec> starts, In<int32_t, Mat> tables, const Scoring& scoring) {
  const KVView& view = kv.view;
  const Where where{positions, starts, tables};
  const auto& [scale, seen, softcap, sinks] = scoring;
  const Sight sight{std::get<0>(seen), std::get<1>(seen)};
  const auto heads = static_cast<int64_t>(q.shape(1));
  require(heads > 0 && heads % view.heads == 0, "query heads must be a multiple of KV heads");
  require(static_cast<int64_t>(q.shape(2)) == view.k_dim, "q and K differ in head size");
  require(q.shape(0) == positions.size(), "one position a token is needed");
  require(sight.window >= 0 && sight.chunk >= 0, "window and chunk must be 0 (none) or positive");
  require(softcap >= 0 && std::isfinite(softcap), "softcap must be 0 (none) or positive and finite");
  require(!sinks || static_cast<int64_t>(sinks->size()) == heads, "one sink a query head is needed");
  require_sequences(where, view, sight);
  Out<float> out = fresh<float>({q.shape(0), static_cast<size_t>(heads * view.v_dim)});
  const AttendArgs args{q.data(), out.data(), view, heads, scale, sight, softcap, sinks ? sinks->data() : nullptr,
                        positions.data(), tables.data(), static_cast<int64_t>(tables.shape(1))};
  const int threads = engine.pool.threads();
  const Computing computing;
  const AttendPlace place{extent(tables, 0), starts.data(), positions.data(), tables.data(), extent(tables, 1),
                          view.block};
  const AttendPlan plan = plan_attend({place, heads, view.heads, sight, threads});
  const std::lock_guard<std::mutex> lock(scratch.busy);
  const int64_t bytes = attend_floats(args, plan, threads) * static_cast<int64_t>(sizeof(float));
  engine.kernels->attention->attend(engine.pool, args, plan.work(), static_cast<float*>(scratch.reserve(bytes)));
  return out;
}

// Has the system find memory for blocks that may never have been written; what they hold stays as it is.  All workers
// take pages of K and of V, as a page may be long in coming.  Where the system cannot, nothing happens.
void populate_kv(Engine& engine, const KV& kv, int64_t first, int64_t count) {
  const KVView& view = kv.view;
  require(first >= 0 && count >= 0 && first <= view.blocks - count, "blocks outside the KV memory");
  const auto part = [&](const void* data, int64_t bytes) {
    const auto begin = reinterpret_cast<uintptr_t>(data) + static_cast<uintptr_t>(first * bytes);
    return Unwritten{begin, begin + static_cast<uintptr_t>(count * bytes)};
  };
  const Unwritten k = part(view.k, view.k_bytes()), v = part(view.v, view.v_bytes());
  const int64_t of_k = k.huge_pages();
  const Computing computing;
  engine.pool.run(of_k + v.huge_pages(), [&](int64_t page, int) {
    page < of_k ? k.populate(page) : v.populate(page - of_k);
  });
}

void move_kv(Engine& engine, Scratch& scratch, KV& kv, Ints src, Ints dst) {
  const KVView& view = kv.view;
  require(src.size() == dst.size(), "src and dst differ in length");
  require_slots(src, view);
  require_slots(dst, view);
  const auto count = static_cast<int64_t>(src.size());
  const Computing computing;
  const std::lock_guard<std::mutex> lock(scratch.busy);
  void* held = scratch.reserve(count * view.heads * view.slot_bytes());
  engine.kernels->attention->move_kv(engine.pool, view, src.data(), dst.data(), count, held);
}

}  // namespace

void bind_attention(nb::module_& m) {
  const auto array = [](const char* name) { return nb::arg(name).noconvert(); };
  m.attr("KV_SPARE") = kSpare;
  nb::class_<KV>(m, "KV", "K and V bytes of one layer with their layout (native/kv.h).")
      .def("__init__", &make_kv, array("k"), array("v").none(), nb::arg("dtype"), nb::arg("blocks"), nb::arg("shape"));
  nb::class_<Scratch>(m, "Scratch", "Working memory; one call at a time may use it.")
      .def(nb::init<>())
      .def_prop_ro("nbytes", &Scratch::bytes);
  m.def("rope_store", &rope_store, nb::arg("pool"), array("qkv"), nb::arg("kv"), array("slots"), array("cos"),
        array("sin"), nb::arg("norms"));
  m.def("attend", &attend, nb::arg("pool"), nb::arg("scratch"), array("q"), nb::arg("kv"), array("positions"),
        array("starts"), array("tables"), nb::arg("scoring"));
  m.def("populate_kv", &populate_kv, nb::arg("pool"), nb::arg("kv"), nb::arg("first"), nb::arg("count"));
  m.def("move_kv", &move_kv, nb::arg("pool"), nb::arg("scratch"), nb::arg("kv"), array("src"), array("dst"));
}

}  // namespace flyweight
