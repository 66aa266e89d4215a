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
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

namespace flyweight {
namespace {

template <class E, size_t Size>
E named(const char* const (&names)[Size], const std::string& name, const char* what) {
  for (size_t i = 0; i < Size; ++i)
    if (name == names[i]) return static_cast<E>(i);
  throw nb::value_error((std::string(what) + " '" + name + "' is unknown").c_str());
}

// Bytes of a packed matrix; INT64_MAX where 63 bits do not hold them, which no machine has either.
size_t packed_nbytes(const std::string& name, int64_t n, int64_t k) {
  constexpr int64_t kMost = int64_t{1} << 48;
  const Kind kind = named<Kind>(kKindNames, name, "kind");
  require(n >= 0 && k >= 0, "rows and columns must not be negative");
  int64_t bytes = 0;
  if (n > kMost || k > kMost || __builtin_mul_overflow(tile_count(n), tile_bytes(kind, k), &bytes)) bytes = INT64_MAX;
  return static_cast<size_t>(bytes);
}

void make_tiles(Tiles* self, Arena& arena, const std::string& name, int64_t n, int64_t k) {
  const Kind kind = named<Kind>(kKindNames, name, "kind");
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
  const Kind kind = named<Kind>(kKindNames, name, "kind");
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
  const int64_t cells = rows * tiles.k, element = kind == Kind::f32 ? 4 : grouped(kind) ? 1 : 2;
  const Structure s = structure_of(kind);
  const int64_t scale_bytes = grouped(kind) ? cells / s.sub * s.scale_bytes() : 0;
  const int64_t super_bytes = grouped(kind) ? cells / s.k() * s.super_bytes : 0;
  require(static_cast<int64_t>(codes.size()) == cells * element, "codes do not fit rows x columns");
  PackPart part;
  part.codes = codes.data();
  part.scales = field(scales, scale_bytes, "scales do not fit rows x columns");
  part.mins = field(mins, s.mins ? scale_bytes : 0, "mins do not fit rows x columns");
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

}  // namespace

void bind_gemm(nb::module_& m) {
  m.def("kinds", [] { return std::vector<std::string>(std::begin(kKindNames), std::end(kKindNames)); },
        "Names of the kinds of weights that kernels read.");
  m.attr("PACKING") = kPacking;
  m.def("packed_nbytes", &packed_nbytes, nb::arg("kind"), nb::arg("n"), nb::arg("k"));
  nb::class_<Arena>(m, "Arena", "Memory that weights share, on huge pages.").def(nb::init<>());
  nb::class_<Tiles>(m, "Tiles", "A matrix [n, k] of one kind in 16-row tiles, zero until packed.")
      .def("__init__", &make_tiles, nb::arg("arena"), nb::arg("kind"), nb::arg("n"), nb::arg("k"))
      .def_prop_ro("kind", [](const Tiles& t) { return kKindNames[static_cast<int>(t.kind)]; })
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
        "Writes rows [row, row + rows) from canonical fields, each given as its bytes.");
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
