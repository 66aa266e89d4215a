// Python entry points of pack.cpp, gemm_*.cpp and linear.cpp.
#include "gemm.h"

#include "../blocks.h"
#include "../checksum.h"
#include "moving.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

namespace flyweight {
namespace {

// Takes `suffix` off a name; whether it was there.
bool take_suffix(std::string& name, const char* suffix) {
  const std::string end(suffix);
  if (name.size() < end.size() || name.compare(name.size() - end.size(), end.size(), end) != 0) return false;
  name.resize(name.size() - end.size());
  return true;
}

// Bytes of a packed matrix; INT64_MAX where 63 bits do not hold them, which no machine has either.
size_t packed_nbytes(const std::string& name, int64_t n, int64_t k) {
  constexpr int64_t kMost = int64_t{1} << 48;
  const Kind kind = parse_kind(name);
  require(n >= 0 && k >= 0, "rows and columns must not be negative");
  int64_t bytes = 0;
  if (n > kMost || k > kMost || __builtin_mul_overflow(tile_count(n), tile_bytes(kind, k), &bytes) ||
      __builtin_add_overflow(bytes, extras_of(kind, n, k).bytes, &bytes))
    bytes = INT64_MAX;
  return static_cast<size_t>(bytes);
}

void make_tiles(Tiles* self, Arena& arena, const std::string& name, int64_t n, int64_t k) {
  const Kind kind = parse_kind(name);
  require(n > 0 && k > 0, "a weight needs rows and columns");
  require(!grouped(kind) || k % block_of(kind).k == 0, "columns of a grouped weight must be whole blocks");
  new (self) Tiles{kind, n, k, arena.take(packed_nbytes(name, n, k))};
}

// A file of packed tiles, mapped; the descriptor may be closed.
struct TileFile {
  std::shared_ptr<Pages> pages;
  std::unique_ptr<Moving> moving;  // none where the mapping stays
};

// Where the system grants no huge pages, or `small` says that a mapping is wanted all the same, nothing moves.
void map_tiles(TileFile* self, int descriptor, bool small) {
  struct stat found {};
  require(fstat(descriptor, &found) == 0 && S_ISREG(found.st_mode) && found.st_size > 0, "not a file with bytes in it");
  const Computing computing;  // pages may come from a disk
  auto pages = std::make_shared<Pages>(descriptor, static_cast<size_t>(found.st_size));
  pages->populate();
  const bool stays = small || !grants_huge_pages();
  auto moving = stays ? nullptr : std::make_unique<Moving>(pages, descriptor);
  new (self) TileFile{std::move(pages), std::move(moving)};
}

size_t unmoved(const TileFile& file) { return file.moving ? file.moving->left() : 0; }

void move_tiles(TileFile& file, Engine& engine, size_t count) {
  const Computing computing;
  if (file.moving) file.moving->move(engine.pool, count);
}

Tiles tiles_of(const TileFile& file, int64_t offset, const std::string& name, int64_t n, int64_t k) {
  const Kind kind = parse_kind(name);
  require(n > 0 && k > 0, "a weight needs rows and columns");
  require(!grouped(kind) || k % block_of(kind).k == 0, "columns of a grouped weight must be whole blocks");
  const size_t size = packed_nbytes(name, n, k), end = file.pages->size();
  require(offset >= 0 && offset % 64 == 0, "tiles begin on a cache line");
  require(static_cast<size_t>(offset) <= end && size <= end - static_cast<size_t>(offset), "tiles beyond the file");
  return {kind, n, k, {file.pages, file.pages->data() + offset, size}};
}

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;  // any field, as its bytes

const uint8_t* field(const std::optional<Bytes>& bytes, int64_t expected, const char* what) {
  require((bytes ? static_cast<int64_t>(bytes->size()) : 0) == expected, what);
  return bytes ? bytes->data() : nullptr;
}

void pack_rows(Engine& engine, Tiles& tiles, int64_t row, int64_t rows, const Bytes& codes,
               const std::optional<Bytes>& scales, const std::optional<Bytes>& mins,
               const std::optional<Bytes>& super_scales, const std::optional<Bytes>& super_mins) {
  require(row >= 0 && rows >= 0 && rows <= tiles.n && row <= tiles.n - rows, "rows beyond the weight");
  require(!tiles.memory.pages->read_only(), "tiles of a file are read only");
  const Kind kind = tiles.kind;
  const int64_t cells = rows * tiles.k, element = base_of(kind) == Kind::f32 ? 4 : grouped(kind) ? 1 : 2;
  const Structure s = structure_of(kind);
  const int64_t groups = grouped(kind) ? cells / s.k() * s.groups() : 0, scale_bytes = groups * s.scale_bytes();
  const int64_t low_bytes = s.low == Low::none ? scale_bytes : groups * s.low_bytes();
  const int64_t super_bytes = grouped(kind) ? cells / s.k() * s.super_bytes : 0;
  require(static_cast<int64_t>(codes.size()) == cells * element, "codes do not fit rows x columns");
  PackPart part;
  part.codes = codes.data();
  part.scales = field(scales, scale_bytes, "scales do not fit rows x columns");
  part.mins = field(mins, s.mins ? low_bytes : 0, "mins do not fit rows x columns");
  part.super_scales = field(super_scales, super_bytes, "super_scales do not fit");
  part.super_mins = field(super_mins, s.mins ? super_bytes : 0, "super_mins do not fit");
  part.row = row, part.rows = rows, part.k = tiles.k, part.kind = kind;
  const Computing computing;
  pack(engine.pool, part, tiles.memory.data);
}

void pack_file_blocks(Engine& engine, Tiles& tiles, int64_t row, int64_t rows, const Bytes& blocks) {
  require(row >= 0 && rows >= 0 && rows <= tiles.n && row <= tiles.n - rows, "rows beyond the weight");
  require(!tiles.memory.pages->read_only(), "tiles of a file are read only");
  const int64_t bytes = block_bytes(tiles.kind);
  require(bytes > 0, "blocks of this kind are not parsed here");
  require(static_cast<int64_t>(blocks.size()) == rows * (tiles.k / block_of(tiles.kind).k) * bytes,
          "blocks do not fit rows x columns");
  PackPart part;
  part.codes = blocks.data();
  part.row = row, part.rows = rows, part.k = tiles.k, part.kind = tiles.kind;
  const Computing computing;
  pack_blocks(engine.pool, part, tiles.memory.data);
}

std::vector<std::string> block_kinds() {
  std::vector<std::string> found;
  for (size_t i = 0; i < std::size(kKindNames); ++i)
    if (block_bytes(static_cast<Kind>(i)) > 0) found.emplace_back(kKindNames[i]);
  return found;
}

nb::bytes sum_of(const Bytes& bytes) {
  uint8_t sum[32];
  {
    const nb::gil_scoped_release release;
    checksum(bytes.data(), bytes.size(), sum);
  }
  return nb::bytes(sum, sizeof sum);
}

void linear_into(Engine& engine, Panels& panels, const In<float, Mat>& x, const Tiles& tiles,
                 const std::optional<In<float, Vec>>& bias, const InOut<float, Mat>& out, int64_t column, int mode) {
  LinearJob job;
  job.tokens = static_cast<int64_t>(x.shape(0)), job.n = tiles.n, job.k = tiles.k;
  job.stride = static_cast<int64_t>(out.shape(1));
  require(static_cast<int64_t>(x.shape(1)) == tiles.k, "x does not have the weight's columns");
  require(out.shape(0) == x.shape(0), "out does not have the rows of x");
  require(column >= 0 && column <= job.stride - tiles.n, "out is too narrow");
  require(!bias || static_cast<int64_t>(bias->size()) == tiles.n, "bias does not have the weight's rows");
  require_mode(engine, mode);
  set_mode(job, tiles.kind, mode);
  if (job.tokens == 0) return;
  job.x = x.data(), job.weight = tiles.memory.data, job.bias = bias ? bias->data() : nullptr;
  job.out = out.data() + column;
  const Computing computing;
  const std::lock_guard<std::mutex> lock(panels.busy);
  job.panels = panels.at_least(job.tokens * token_bytes(job.mode, job.k));
  linear(engine.pool, *engine.kernels->gemm, job);
}

void embed_into(Engine& engine, const Tiles& tiles, const In<int32_t, Vec>& ids, const InOut<float, Mat>& out) {
  const auto count = static_cast<int64_t>(ids.size());
  require(static_cast<int64_t>(out.shape(0)) == count && static_cast<int64_t>(out.shape(1)) == tiles.k,
          "out must be ids x columns");
  for (int64_t i = 0; i < count; ++i) require(ids.data()[i] >= 0 && ids.data()[i] < tiles.n, "an id beyond the table");
  LinearJob job;
  job.weight = tiles.memory.data, job.kind = tiles.kind, job.n = tiles.n, job.k = tiles.k;
  const int32_t* rows = ids.data();
  float* to = out.data();
  const Computing computing;
  constexpr int64_t kRows = 8;  // rows of a chunk: some 10 us
  engine.pool.run((count + kRows - 1) / kRows, [&](int64_t chunk, int) {
    for (int64_t i = chunk * kRows; i < count && i < (chunk + 1) * kRows; ++i)
      engine.kernels->gemm->unpack(job, rows[i], to + i * job.k);
  });
}

// What the threads of this pool can do at most: each reads or computes as fast as it can and returns how much it did;
// the caller holds the clock.
int64_t probe_read(Engine& engine, const Tiles& tiles) {
  constexpr int64_t kChunk = 128 << 10;
  const int64_t chunks = static_cast<int64_t>(tiles.memory.size) / kChunk;
  std::atomic<int32_t> sink{0};
  const Computing computing;
  engine.pool.run(chunks, [&](int64_t c, int) {
    sink.fetch_add(engine.kernels->gemm->read(tiles.memory.data + c * kChunk, kChunk), std::memory_order_relaxed);
  });
  return chunks * kChunk;
}

template <auto Member>
int64_t probe_compute(Engine& engine, int64_t rounds, int64_t operations) {
  const int64_t chunks = engine.pool.threads() * int64_t{8};
  std::atomic<int32_t> sink{0};
  const Computing computing;
  engine.pool.run(chunks, [&](int64_t, int) {
    sink.fetch_add(static_cast<int32_t>((engine.kernels->gemm->*Member)(rounds)), std::memory_order_relaxed);
  });
  return chunks * rounds * operations;
}

int64_t probe_dot(Engine& engine, int64_t rounds) { return probe_compute<&GemmKernels::dot>(engine, rounds, kDotOps); }
int64_t probe_fma(Engine& engine, int64_t rounds) { return probe_compute<&GemmKernels::fma>(engine, rounds, kFmaOps); }
int64_t probe_bf16(Engine& engine, int64_t rounds) { return probe_compute<&GemmKernels::bf16>(engine, rounds, kBf16Ops); }

// What is behind the tiles: scales of rows [row, row + ...), the order of the columns, the activations' scale.
void pack_extras(Tiles& tiles, int64_t row, const std::optional<In<float, Vec>>& row_scales,
                 const std::optional<In<int32_t, Vec>>& columns, float input_scale) {
  require(!tiles.memory.pages->read_only(), "tiles of a file are read only");
  const Form form = form_of(tiles.kind);
  const Extras extras = extras_of(tiles.kind, tiles.n, tiles.k);
  uint8_t* behind = tiles.memory.data + tile_count(tiles.n) * tile_bytes(tiles.kind, tiles.k);
  require(form.rows == row_scales.has_value() && form.order == columns.has_value() && form.input == (input_scale > 0),
          "the kind has other parts behind its tiles");
  if (row_scales) {
    const auto count = static_cast<int64_t>(row_scales->size());
    require(row >= 0 && count <= tiles.n && row <= tiles.n - count, "rows beyond the weight");
    std::memcpy(behind + row * 4, row_scales->data(), static_cast<size_t>(count) * 4);
  }
  if (columns) {
    require(static_cast<int64_t>(columns->size()) == tiles.k, "columns are not the weight's");
    for (int64_t i = 0; i < tiles.k; ++i)
      require(columns->data()[i] >= 0 && columns->data()[i] < tiles.k, "a column beyond the weight");
    std::memcpy(behind + extras.order, columns->data(), static_cast<size_t>(tiles.k) * 4);
  }
  if (form.input) std::memcpy(behind + extras.input, &input_scale, 4);
}

}  // namespace

Kind parse_kind(const std::string& name) {
  std::string left = name;
  Form form;
  form.input = take_suffix(left, "_static"), form.order = take_suffix(left, "_order"), form.rows = take_suffix(left, "_rows");
  const auto base = [&]() -> int {
    for (size_t i = 0; i < std::size(kKindNames); ++i)
      if (left == kKindNames[i]) return static_cast<int>(i);
    return -1;
  };
  int found = base();
  if (found < 0) {
    form.low = take_suffix(left, "_min") ? Low::min : take_suffix(left, "_zf") ? Low::float_zero : Low::none;
    form.number = take_suffix(left, "_f32") ? Number::f32 : take_suffix(left, "_bf16") ? Number::bf16 : Number::f16;
    form.group = take_suffix(left, "_g32") ? 32 : take_suffix(left, "_g64") ? 64 : take_suffix(left, "_g128") ? 128 : 0;
    found = form.group ? base() : -1;
    const Kind kind = static_cast<Kind>(found);
    const bool whole = kind == Kind::u2 || kind == Kind::u3 || kind == Kind::u4 || kind == Kind::u8;
    if (found >= 0 && (!formed(kind) || (form.low != Low::none && !whole))) found = -1;
    if (whole && form.low == Low::none) form.low = Low::zero;
  } else if (formed(static_cast<Kind>(found)) && (!form.rows || static_cast<Kind>(found) <= Kind::u8)) {
    found = -1;  // without a scale
  }
  if (found < 0) throw nb::value_error(("kind '" + name + "' is unknown").c_str());
  return with_form(static_cast<Kind>(found), form);
}

std::string name_kind(Kind kind) {
  const Form form = form_of(kind);
  std::string name = kKindNames[static_cast<int>(base_of(kind))];
  if (form.group) name += "_g" + std::to_string(form.group);
  if (form.number == Number::bf16) name += "_bf16";
  if (form.number == Number::f32) name += "_f32";
  if (form.low == Low::float_zero) name += "_zf";
  if (form.low == Low::min) name += "_min";
  return name + (form.rows ? "_rows" : "") + (form.order ? "_order" : "") + (form.input ? "_static" : "");
}

void bind_gemm(nb::module_& m) {
  m.def("kinds", [] { return std::vector<std::string>(std::begin(kKindNames), std::end(kKindNames)); },
        "Names of the kinds of weights that kernels read, without their forms.");
  m.attr("PACKING") = kPacking;
  m.def("packed_nbytes", &packed_nbytes, nb::arg("kind"), nb::arg("n"), nb::arg("k"));
  nb::class_<Arena>(m, "Arena", "Memory that weights share, on huge pages.").def(nb::init<>());
  nb::class_<Tiles>(m, "Tiles", "A matrix [n, k] of one kind in 16-row tiles, zero until packed.")
      .def("__init__", &make_tiles, nb::arg("arena"), nb::arg("kind"), nb::arg("n"), nb::arg("k"))
      .def_prop_ro("kind", [](const Tiles& t) { return name_kind(t.kind); })
      .def_prop_ro("n", [](const Tiles& t) { return t.n; })
      .def_prop_ro("k", [](const Tiles& t) { return t.k; })
      .def_prop_ro("nbytes", [](const Tiles& t) { return t.memory.size; })
      .def("bytes", [](nb::handle self) {
        const Arena::Piece& memory = nb::cast<const Tiles&>(self).memory;
        return Out<const uint8_t>(memory.data, {memory.size}, self);
      }, "The tiles as they lie in memory.");
  nb::class_<TileFile>(m, "TileFile", "A file of packed tiles, mapped; its pages may move to huge ones of our own.")
      .def("__init__", &map_tiles, nb::arg("descriptor"), nb::arg("small"))
      .def_prop_ro("unmoved", &unmoved, "Bytes that may still move.")
      .def("move", &move_tiles, nb::arg("pool"), nb::arg("count"), "Moves so many more bytes, in whole huge pages.")
      .def_prop_ro("nbytes", [](const TileFile& f) { return f.pages->size(); })
      .def("tiles", &tiles_of, nb::arg("offset"), nb::arg("kind"), nb::arg("n"), nb::arg("k"),
           "The matrix whose tiles begin at an offset.");
  nb::class_<Panels>(m, "Panels", "Rounded activations and other working memory of products, one call at a time.")
      .def(nb::init<>())
      .def_prop_ro("nbytes", [](const Panels& p) { return p.pages.size(); });
  const auto array = [](const char* name) { return nb::arg(name).noconvert(); };
  m.def("pack_rows", &pack_rows, nb::arg("pool"), nb::arg("tiles"), nb::arg("row"), nb::arg("rows"), array("codes"),
        array("scales").none() = nb::none(), array("mins").none() = nb::none(),
        array("super_scales").none() = nb::none(), array("super_mins").none() = nb::none(),
        "Writes rows [row, row + rows) from canonical fields, each given as its bytes; mins may be zero points.");
  m.def("pack_extras", &pack_extras, nb::arg("tiles"), nb::arg("row"), array("row_scales").none(), array("columns").none(),
        nb::arg("input_scale"), "Writes what lies behind the tiles: the scales of rows from `row` on, and the rest.");
  m.def("checksum", &sum_of, array("bytes"), "32 bytes that damage changes; no protection against forgery.");
  m.def("block_kinds", &block_kinds, "Kinds whose blocks, as files have them, pack_blocks takes.");
  m.def("pack_blocks", &pack_file_blocks, nb::arg("pool"), nb::arg("tiles"), nb::arg("row"), nb::arg("rows"),
        array("blocks"), "Writes rows [row, row + rows) from a file's blocks, given as their bytes.");
  m.def("linear", &linear_into, nb::arg("pool"), nb::arg("panels"), array("x"), nb::arg("tiles"),
        array("bias").none(), array("out"), nb::arg("column"), nb::arg("mode"),
        "out[:, column:column+n] = x @ tiles.T + bias; mode 0 f32, 1 bf16, 2 int8 activations.");
  m.def("embed", &embed_into, nb::arg("pool"), nb::arg("tiles"), array("ids"), array("out"),
        "out[i] = row ids[i] of the matrix, exactly.");
  m.def("probe_read", &probe_read, nb::arg("pool"), nb::arg("tiles"), "Reads a matrix once; bytes.");
  m.def("probe_dot", &probe_dot, nb::arg("pool"), nb::arg("rounds"), "int8 dots in registers; operations.");
  m.def("probe_bf16", &probe_bf16, nb::arg("pool"), nb::arg("rounds"), "bf16 products in registers; operations.");
  m.def("probe_fma", &probe_fma, nb::arg("pool"), nb::arg("rounds"), "float32 fma in registers; operations.");
}

}  // namespace flyweight
