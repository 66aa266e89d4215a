// Python entry points of bpe.cpp, and the scan of a file's strings.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "../bpe.h"
#include "bindings.h"

namespace flyweight {
namespace {

// Strings as text/strings.py keeps them; every range is checked.
Strings strings_of(const In<uint8_t, Vec>& bytes, const In<int64_t, Vec>& begin, const In<int64_t, Vec>& end) {
  require(begin.size() == end.size() && begin.size() < (size_t{1} << 31), "as many ends as beginnings");
  const Strings found{reinterpret_cast<const char*>(bytes.data()), begin.data(), end.data(),
                      static_cast<int64_t>(begin.size())};
  for (int64_t i = 0; i < found.count; ++i)
    require(0 <= found.begin[i] && found.begin[i] <= found.end[i] && found.end[i] <= extent(bytes, 0),
            "a string beyond its bytes");
  return found;
}

void make_bpe(Bpe* self, const In<uint8_t, Vec>& bytes, const In<int64_t, Vec>& begin, const In<int64_t, Vec>& end,
              const In<uint8_t, Vec>& uses, bool whole, bool fallback) {
  const Strings pieces = strings_of(bytes, begin, end);
  require(extent(uses, 0) == pieces.count, "a use for every piece");
  const nb::gil_scoped_release release;
  new (self) Bpe(pieces, uses.data(), whole, fallback);
}

int64_t add_merges(Bpe& bpe, const In<uint8_t, Vec>& bytes, const In<int64_t, Vec>& begin, const In<int64_t, Vec>& end) {
  const Strings merges = strings_of(bytes, begin, end);
  const nb::gil_scoped_release release;
  return bpe.add_merges(merges);
}

// The words are Python's: their list is the caller's alone until this returns, for others run meanwhile.
std::vector<int32_t> encode(const Bpe& bpe, const std::vector<std::string_view>& words) {
  const nb::gil_scoped_release release;
  std::vector<int32_t> ids;
  for (const std::string_view word : words) bpe.encode(word, ids);
  return ids;
}

// Where `count` strings lie that begin at `at`, each after its length in 8 bytes: (begin, end), as far as lengths are at
// most `most` and nothing is past the bytes.
std::pair<Out<int64_t>, Out<int64_t>> scan(const In<uint8_t, Vec>& bytes, int64_t at, int64_t count, int64_t most) {
  const int64_t size = extent(bytes, 0);
  require(at >= 0 && at <= size, "strings beyond the bytes");
  std::vector<int64_t> begin, end;  // no larger than what is there: a count may lie
  for (int64_t i = 0; i < count && size - at >= 8; ++i) {
    uint64_t length = 0;
    std::memcpy(&length, bytes.data() + at, 8);
    if (length > static_cast<uint64_t>(most) || length > static_cast<uint64_t>(size - at - 8)) break;
    begin.push_back(at + 8);
    at += 8 + static_cast<int64_t>(length);
    end.push_back(at);
  }
  const auto given = [](const std::vector<int64_t>& values) {
    Out<int64_t> out = fresh<int64_t>({values.size()});
    if (!values.empty()) std::memcpy(out.data(), values.data(), values.size() * sizeof(int64_t));
    return out;
  };
  return {given(begin), given(end)};
}

// Whether a character of UTF-8 begins at `p`: its length, or 0.
int64_t character(const uint8_t* p, int64_t left) {
  const int64_t length = p[0] < 0x80 ? 1 : p[0] < 0xc2 ? 0 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : p[0] < 0xf5 ? 4 : 0;
  if (length == 0 || length > left) return 0;
  for (int64_t i = 1; i < length; ++i)
    if ((p[i] & 0xc0) != 0x80) return 0;
  const bool short_enough = !(p[0] == 0xe0 && p[1] < 0xa0) && !(p[0] == 0xf0 && p[1] < 0x90);
  const bool surrogate = p[0] == 0xed && p[1] >= 0xa0, beyond = p[0] == 0xf4 && p[1] >= 0x90;
  return short_enough && !surrogate && !beyond ? length : 0;
}

// The first string that is not UTF-8, or -1.
int64_t malformed(const In<uint8_t, Vec>& bytes, const In<int64_t, Vec>& begin, const In<int64_t, Vec>& end) {
  const Strings strings = strings_of(bytes, begin, end);
  for (int64_t i = 0; i < strings.count; ++i)
    for (int64_t at = strings.begin[i]; at < strings.end[i];) {
      const int64_t length = character(bytes.data() + at, strings.end[i] - at);
      if (length == 0) return i;
      at += length;
    }
  return -1;
}

}  // namespace

void bind_text(nb::module_& m) {
  const auto array = [](const char* name) { return nb::arg(name).noconvert(); };
  nb::class_<Bpe>(m, "Bpe", "Byte-pair merging over a vocabulary.")
      .def("__init__", &make_bpe, array("bytes"), array("begin"), array("end"), array("uses"), nb::arg("whole"),
           nb::arg("fallback"))
      .def("add_merges", &add_merges, array("bytes"), array("begin"), array("end"),
           "The merges, lowest rank first; the first that names what is no piece, or -1.")
      .def("encode", &encode, nb::arg("words"), "Ids of words, one word after the other.");
  m.def("malformed", &malformed, array("bytes"), array("begin"), array("end"), "The first that is not UTF-8, or -1.");
  m.def("scan", &scan, array("bytes"), nb::arg("at"), nb::arg("count"), nb::arg("most"),
        "Where strings lie that follow their lengths: begin, end; fewer than count where one is cut short or too long.");
}

}  // namespace flyweight
