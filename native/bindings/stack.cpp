// Python entry points of stack.cpp: layers read once from their recipes (flyweight/ops/stack.py), and run as one.
// Everything that indexes memory is checked here.
#include "../stack.h"
#include "../rotation.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <optional>
#include <tuple>

#include "attention.h"
#include "borrowed.h"

namespace flyweight {
namespace {

struct Stack {
  StackLayers layers;
  int64_t hidden = 0;
  Modes modes;
  Borrowed borrowed;
};

// The K/V of a stack's layers, looked up once: a step that gets it from every layer's object waits for memory each time.
struct StackKV {
  std::vector<KVView> views;
  std::vector<nb::object> held;
};

void hold_kv(StackKV* self, const std::vector<nb::object>& layers) {
  StackKV made;
  for (const nb::object& layer : layers) made.views.push_back(nb::cast<const KV&>(layer).view);
  made.held = layers;
  new (self) StackKV(std::move(made));
}

using Recipes = nb::typed<nb::sequence, nb::object>;  // or what their MLPs do: members of GatedAct and PlainAct

constexpr int64_t kMaxHeads = 1 << 16;  // so that no size of a layer passes 63 bits

const float* vector_of(nb::handle array, int64_t size, Borrowed& borrowed) {
  if (array.is_none()) return nullptr;
  const auto values = nb::cast<In<float, Vec>>(array, false);
  require(extent(values, 0) == size, "a stack's vector does not have its layer's size");
  borrowed.held.push_back(nb::borrow(array));
  return values.data();
}

RowNorm norm_of(nb::handle norm, int64_t hidden, Borrowed& borrowed) {
  RowNorm out;
  if (norm.is_none()) return out;
  out.kind = nb::cast<bool>(norm.attr("centred")) ? RowNorm::Kind::layer : RowNorm::Kind::rms;
  out.w = vector_of(norm.attr("w"), hidden, borrowed);
  out.b = vector_of(norm.attr("b"), hidden, borrowed);
  out.eps = nb::cast<float>(norm.attr("eps"));
  require(out.w != nullptr, "a norm needs weights");
  return out;
}

After after_of(nb::handle after, int64_t hidden, Borrowed& borrowed) {
  return {norm_of(after.attr("norm"), hidden, borrowed), nb::cast<float>(after.attr("factor"))};
}

KVView shape_of(nb::handle group) {
  KVView kv;
  kv.heads = nb::cast<int64_t>(group.attr("heads"));
  kv.k_dim = nb::cast<int64_t>(group.attr("k_dim")), kv.v_dim = nb::cast<int64_t>(group.attr("v_dim"));
  kv.v_in_k = nb::cast<bool>(group.attr("v_in_k"));
  require(kv.heads > 0 && kv.heads <= kMaxHeads, "a layer has 1 to 65536 KV heads");
  require(kv.k_dim > 0 && kv.v_dim > 0 && kv.k_dim <= kMaxHead && kv.v_dim <= kMaxHead, "head size must be 1 to 1024");
  return kv;
}

void read_head_norms(nb::handle norms, StackLayer& layer, const KVView& kv, Borrowed& borrowed) {
  if (norms.is_none()) return;
  layer.q_norm = head_weights(nb::cast<In<float, Vec>>(norms.attr("q"), false), layer.heads, kv.k_dim);
  layer.k_norm = head_weights(nb::cast<In<float, Vec>>(norms.attr("k"), false), kv.heads, kv.k_dim);
  layer.head_eps = nb::cast<float>(norms.attr("eps"));
  borrowed.held.push_back(nb::borrow(norms));
}

void read_attention(nb::handle attn, StackLayer& layer, int64_t hidden, const Modes& modes, Borrowed& borrowed) {
  const nb::object group = attn.attr("kv");
  const KVView kv = layer.kv = shape_of(group);
  layer.heads = nb::cast<int64_t>(attn.attr("heads"));
  require(layer.heads > 0 && layer.heads <= kMaxHeads && layer.heads % kv.heads == 0,
          "query heads must be a multiple of KV heads, at most 65536");
  layer.qkv = borrowed.parts(attn.attr("qkv"), modes, layer.heads * kv.k_dim + kv.heads * kv.row(), hidden);
  layer.out = borrowed.parts(attn.attr("out"), modes, hidden, layer.heads * kv.v_dim);
  read_head_norms(attn.attr("norms"), layer, kv, borrowed);
  layer.scale = nb::cast<float>(attn.attr("scale"));
  layer.sight = {nb::cast<int64_t>(group.attr("window")), nb::cast<int64_t>(group.attr("chunk"))};
  layer.softcap = nb::cast<float>(attn.attr("softcap"));
  layer.sinks = vector_of(attn.attr("sinks"), layer.heads, borrowed);
  require(layer.sight.window >= 0 && layer.sight.chunk >= 0, "window and chunk must be 0 (none) or positive");
  require(layer.softcap >= 0 && std::isfinite(layer.softcap), "softcap must be 0 (none) or positive and finite");
}

void read_feed_forward(nb::handle mlp, nb::handle act, StackLayer& layer, int64_t hidden, const Modes& modes,
                       Borrowed& borrowed) {
  layer.inner = nb::cast<int64_t>(mlp.attr("inner"));
  require(layer.inner > 0 && layer.inner <= INT32_MAX, "an MLP needs inner elements");
  layer.gated = nb::isinstance<GatedAct>(act);
  if (layer.gated) {
    layer.act = nb::cast<GatedAct>(act);
  } else {
    layer.activation = nb::cast<PlainAct>(act);
  }
  layer.up = borrowed.parts(mlp.attr("up"), modes, layer.gated ? 2 * layer.inner : layer.inner, hidden);
  layer.down = borrowed.parts(mlp.attr("down"), modes, hidden, layer.inner);
}

StackLayer layer_of(nb::handle recipe, nb::handle act, int64_t hidden, const Modes& modes, Borrowed& borrowed) {
  StackLayer layer;
  layer.attn_norm = norm_of(recipe.attr("attn_norm"), hidden, borrowed);
  read_attention(recipe.attr("attn"), layer, hidden, modes, borrowed);
  layer.attn_post = after_of(recipe.attr("attn_post"), hidden, borrowed);
  layer.mlp_norm = norm_of(recipe.attr("mlp_norm"), hidden, borrowed);
  read_feed_forward(recipe.attr("mlp"), act, layer, hidden, modes, borrowed);
  layer.mlp_post = after_of(recipe.attr("mlp_post"), hidden, borrowed);
  const nb::object rope = recipe.attr("rope");
  layer.rope = rope.is_none() ? -1 : nb::cast<int64_t>(rope);
  require(layer.rope >= -1, "a layer's rotation cannot be negative");
  return layer;
}

void make_stack(Stack* self, const Recipes& recipes, const Recipes& acts, int64_t hidden, const Modes& modes) {
  const size_t count = nb::len(recipes);
  require(count > 0 && nb::len(acts) == count, "a stack needs layers, and one activation a layer");
  require(hidden > 0, "rows need elements");
  Stack made;
  made.hidden = hidden, made.modes = modes;
  for (size_t i = 0; i < count; ++i)
    made.layers.push_back(layer_of(recipes[i], acts[i], hidden, modes, made.borrowed));
  new (self) Stack(std::move(made));
}

using Ints = In<int32_t, Vec>;
using Table = In<int32_t, Mat>;
using Places = std::tuple<Ints, Ints, Ints, Table>;                      // slots, positions, starts, tables
using Ropes = std::vector<std::tuple<In<float, Mat>, In<float, Mat>>>;  // cos, sin
using Copies = std::optional<std::tuple<Ints, Ints>>;                   // slots: from, to
using Pending = std::optional<In<float, Mat>>;
using Taps = std::vector<std::tuple<size_t, InOut<float, Mat>>>;  // a layer, what gets the residual after it

bool same_layout(const KVView& a, const KVView& b) {
  return a.heads == b.heads && a.k_dim == b.k_dim && a.v_dim == b.v_dim && a.v_in_k == b.v_in_k;
}

// Whether what fits layer i fits the one before it, too.
bool same_places(const Stack& stack, const std::vector<KVView>& kv, size_t i) {
  return i > 0 && kv[i].blocks == kv[i - 1].blocks && kv[i].block == kv[i - 1].block &&
         stack.layers[i].sight == stack.layers[i - 1].sight;
}

void require_layers(const Stack& stack, const std::vector<KVView>& kv, const Places& places, const Copies& copies,
                    const std::vector<StackRope>& ropes) {
  const auto& [slots, positions, starts, tables] = places;
  require(kv.size() == stack.layers.size(), "one K/V memory a layer is needed");
  for (size_t i = 0; i < kv.size(); ++i) {
    const StackLayer& layer = stack.layers[i];
    require(same_layout(layer.kv, kv[i]), "K/V memory does not have its layer's shape");
    if (!same_places(stack, kv, i)) {
      require_slots(slots, kv[i]);
      if (copies) require_slots(std::get<0>(*copies), kv[i]), require_slots(std::get<1>(*copies), kv[i]);
      require_sequences({positions, starts, tables}, kv[i], layer.sight);
    }
    require(layer.rope < static_cast<int64_t>(ropes.size()), "a layer names a rotation that is not there");
    const size_t rope = layer.rope < 0 ? ropes.size() - 1 : static_cast<size_t>(layer.rope);
    require(2 * ropes[rope].half <= kv[i].k_dim, "a rotation is wider than the head");
  }
}

std::vector<StackRope> ropes_of(const Ropes& given, int64_t tokens) {
  std::vector<StackRope> ropes;
  for (const auto& [cos, sin] : given) {
    require(extent(cos, 0) == tokens && same_shape(cos, sin), "cos and sin must be [T, dim/2]");
    ropes.push_back({cos.data(), sin.data(), extent(cos, 1)});
  }
  require(!ropes.empty(), "a rotation is needed");
  return ropes;
}

StackCopies copies_of(const Copies& given) {
  if (!given) return {};
  const auto& [from, to] = *given;
  require(from.size() == to.size(), "as many slots to copy from as to are needed");
  return {from.data(), to.data(), extent(from, 0)};
}

// One a layer, null where it is not tapped; empty where none is.
std::vector<float*> taps_of(const Taps& given, size_t layers, const InOut<float, Mat>& residual) {
  std::vector<float*> taps(given.empty() ? 0 : layers);
  for (const auto& [layer, rows] : given) {
    require(layer < layers, "a layer is tapped that is not there");
    require(same_shape(rows, residual), "a tap does not have the residual's shape");
    taps[layer] = rows.data();
  }
  return taps;
}

Out<float> run_layers(Engine& engine, Panels& panels, Scratch& scratch, const Stack& stack, const Pending& pending,
                      InOut<float, Mat> residual, const StackKV& kv, const Places& places, const Ropes& rotations,
                      const Copies& copies, const Taps& tapped) {
  const auto& [slots, positions, starts, tables] = places;
  const int64_t tokens = extent(residual, 0), hidden = stack.hidden;
  for (const int mode : stack.modes) require_mode(engine, mode);
  require(extent(residual, 1) == hidden, "the residual does not have the rows of the layers");
  require(!pending || same_shape(*pending, residual), "x and residual differ in shape");
  require(extent(slots, 0) == tokens && extent(positions, 0) == tokens, "one slot and position a token are needed");
  const std::vector<StackRope> ropes = ropes_of(rotations, tokens);
  require_layers(stack, kv.views, places, copies, ropes);
  const std::vector<float*> taps = taps_of(tapped, stack.layers.size(), residual);
  Out<float> out = fresh<float>({residual.shape(0), residual.shape(1)});
  if (tokens == 0) return out;
  const StackArgs args{tokens, hidden, pending ? pending->data() : nullptr, residual.data(), out.data(),
                       kv.views.data(), ropes.data(), static_cast<int64_t>(ropes.size()), slots.data(),
                       positions.data(), extent(tables, 0), extent(tables, 1), starts.data(), tables.data(),
                       copies_of(copies), taps.empty() ? nullptr : taps.data()};
  const Computing computing;
  const StackPlan plan = plan_stack(stack.layers, args, engine.pool.threads());
  const std::lock_guard<std::mutex> panels_lock(panels.busy), scratch_lock(scratch.busy);
  const int64_t attend = (plan.attend_floats + 15) / 16 * 16, arrays = tokens * widths_of(stack.layers, hidden).all();
  auto* floats = static_cast<float*>(scratch.reserve((attend + arrays) * int64_t{sizeof(float)}));
  const StackMemory memory{floats + attend, panels.at_least(plan.panel_bytes), floats};
  run_stack(engine.pool, *engine.kernels, stack.layers, args, plan, memory);
  return out;
}

std::tuple<Out<float>, Out<float>> rotation_of(Engine& engine, Ints positions, In<float, Vec> frequencies, float scale) {
  const size_t tokens = positions.size(), half = frequencies.size();
  Out<float> cos = fresh<float>({tokens, half}), sin = fresh<float>({tokens, half});
  const Computing computing;
  rotation(engine.pool, positions.data(), static_cast<int64_t>(tokens), frequencies.data(), static_cast<int64_t>(half),
           scale, cos.data(), sin.data());
  return {cos, sin};
}

}  // namespace

void bind_stack(nb::module_& m) {
  const auto array = [](const char* name) { return nb::arg(name).noconvert(); };
  nb::class_<Stack>(m, "Stack", "Layers read from their recipes, with what keeps their weights alive.")
      .def("__init__", &make_stack, nb::arg("recipes"), nb::arg("acts"), nb::arg("hidden"), nb::arg("modes"))
      .def_prop_ro("floats", [](const Stack& s) { return widths_of(s.layers, s.hidden).all(); },
                   "Of a token, between kernels.");
  nb::class_<StackKV>(m, "StackKV", "K/V of a stack's layers.")
      .def("__init__", &hold_kv, nb::arg("layers"));
  m.def("run_stack", &run_layers, nb::arg("pool"), nb::arg("panels"), nb::arg("scratch"), nb::arg("stack"),
        array("x").none(), array("residual"), nb::arg("kv"), array("places"), array("ropes"),
        array("ancestors").none() = nb::none(), array("taps") = Taps(),
        "Layer after layer: adds to the residual, returns what is still to be added; x: what is before the first; taps: "
        "layers, and arrays that get the residual after them, all added.");
  m.def("rotation", &rotation_of, nb::arg("pool"), array("positions"), array("frequencies"), nb::arg("scale"),
        "cos and sin [T, dim/2] of every position times every frequency, times scale.");
}

}  // namespace flyweight
