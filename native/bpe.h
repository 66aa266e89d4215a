// Byte-pair merging: a word's characters become pieces, and neighbours are joined, the pair of lowest rank first and of
// equal ones the leftmost, until no pair is left.  Built once from a vocabulary's bytes; safe to read from many threads.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace flyweight {

// Strings in one run of bytes: string i is [begin[i], end[i]).
struct Strings {
  const char* bytes = nullptr;
  const int64_t* begin = nullptr;
  const int64_t* end = nullptr;
  int64_t count = 0;

  std::string_view at(int64_t i) const { return {bytes + begin[i], static_cast<size_t>(end[i] - begin[i])}; }
};

// Numbers by hash, open addressing, at most half full.  `Same` says whether a number's entry is the one sought.
class Places {
 public:
  explicit Places(int64_t most);
  template <class Same>
  int32_t& find(uint64_t hash, const Same& same) {
    uint64_t at = hash & mask_;
    while (slots_[at] >= 0 && !same(slots_[at])) at = (at + 1) & mask_;
    return slots_[at];
  }
  template <class Same>
  int32_t find(uint64_t hash, const Same& same) const {
    return const_cast<Places*>(this)->find(hash, same);
  }

 private:
  uint64_t mask_;
  std::vector<int32_t> slots_;  // -1: none
};

class Bpe {
 public:
  enum class Use : uint8_t { none, piece, byte };  // of a token: not merged; merged; only the one of an unknown byte

  // Of equal pieces the last counts.  `whole`: a word that is a piece is taken whole.  `bytes`: characters no piece has
  // become <0xHH> pieces; without it, or those, they are left out.
  Bpe(const Strings& pieces, const uint8_t* uses, bool whole, bool bytes);

  // "left right", lowest rank first; those whose result is no piece are left out.  Returns the first merge that names
  // something that is no piece, or -1.
  int64_t add_merges(const Strings& merges);

  void encode(std::string_view word, std::vector<int32_t>& ids) const;

 private:
  struct Merge {
    uint64_t pair;
    int32_t rank, id;
  };
  struct Symbol {
    int32_t id, before, after;  // neighbours by index, -1: none
    bool gone;
  };
  int32_t id_of(std::string_view piece) const;
  int32_t mergeable(std::string_view piece) const;
  const Merge* merge_of(int32_t left, int32_t right) const;
  std::vector<Symbol> symbols(std::string_view word) const;
  bool add_bytes(std::string_view character, std::vector<Symbol>& word) const;

  uint64_t seed_;
  bool whole_, bytes_;
  std::string text_;  // all pieces
  std::vector<int64_t> begin_;
  std::vector<uint8_t> uses_;
  Places ids_, merges_at_;
  std::vector<Merge> merges_;
};

}  // namespace flyweight
