#include "bpe.h"

#include <cstdio>
#include <cstring>
#include <queue>
#include <random>

namespace flyweight {
namespace {

uint64_t fold(uint64_t a, uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

// Seeded anew in every process: no one can write a file whose pieces all fall into one place.
uint64_t hash_of(std::string_view text, uint64_t seed) {
  uint64_t hash = seed ^ text.size();
  for (size_t at = 0; at < text.size(); at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, text.data() + at, text.size() - at < 8 ? text.size() - at : 8);
    hash = fold(hash ^ word, seed | 1);
  }
  return fold(hash, 0x9e3779b97f4a7c15u);
}

uint64_t random_seed() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

uint64_t pair_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

// Bytes of the character that begins with `first`.
size_t length_of(char first) {
  const auto byte = static_cast<uint8_t>(first);
  return byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}

struct Candidate {
  int32_t rank, at, id;  // joining symbol `at` with the one after it makes `id`
  bool operator<(const Candidate& other) const {  // a priority queue gives its greatest
    return rank != other.rank ? rank > other.rank : at > other.at;
  }
};

}  // namespace

Places::Places(int64_t most) {
  uint64_t size = 16;
  while (size < 2 * static_cast<uint64_t>(most)) size *= 2;
  mask_ = size - 1;
  slots_.assign(size, -1);
}

Bpe::Bpe(const Strings& pieces, const uint8_t* uses, bool whole, bool bytes)
    : seed_(random_seed()), whole_(whole), bytes_(bytes), uses_(uses, uses + pieces.count), ids_(pieces.count),
      merges_at_(0) {
  begin_.reserve(static_cast<size_t>(pieces.count) + 1);
  begin_.push_back(0);
  for (int64_t i = 0; i < pieces.count; ++i) {
    text_ += pieces.at(i);
    begin_.push_back(static_cast<int64_t>(text_.size()));
  }
  for (int64_t i = 0; i < pieces.count; ++i) {
    const std::string_view piece = pieces.at(i);
    if (uses_[static_cast<size_t>(i)] == static_cast<uint8_t>(Use::none) || piece.empty()) continue;
    ids_.find(hash_of(piece, seed_), [&](int32_t known) { return pieces.at(known) == piece; }) = static_cast<int32_t>(i);
  }
}

int32_t Bpe::id_of(std::string_view piece) const {
  return ids_.find(hash_of(piece, seed_), [&](int32_t known) {
    const auto at = static_cast<size_t>(known);
    return std::string_view(text_).substr(static_cast<size_t>(begin_[at]), static_cast<size_t>(begin_[at + 1] - begin_[at])) ==
           piece;
  });
}

int32_t Bpe::mergeable(std::string_view piece) const {
  const int32_t id = id_of(piece);
  return id >= 0 && uses_[static_cast<size_t>(id)] == static_cast<uint8_t>(Use::piece) ? id : -1;
}

int64_t Bpe::add_merges(const Strings& merges) {
  merges_at_ = Places(merges.count);
  merges_.reserve(static_cast<size_t>(merges.count));
  std::string joint;
  for (int64_t i = 0; i < merges.count; ++i) {
    const std::string_view text = merges.at(i);
    const size_t gap = text.find(' ');
    const std::string_view left = text.substr(0, gap);
    const std::string_view right = gap == std::string_view::npos ? std::string_view{} : text.substr(gap + 1);
    const int32_t a = mergeable(left), b = mergeable(right);
    if (a < 0 || b < 0) return i;
    joint.assign(left).append(right);
    const int32_t id = mergeable(joint);
    if (id < 0) continue;
    const uint64_t pair = pair_of(a, b);
    int32_t& place = merges_at_.find(fold(pair ^ seed_, seed_ | 1),
                                     [&](int32_t known) { return merges_[static_cast<size_t>(known)].pair == pair; });
    if (place < 0) {
      place = static_cast<int32_t>(merges_.size());
      merges_.push_back({pair, static_cast<int32_t>(i), id});
    }
    merges_[static_cast<size_t>(place)].rank = static_cast<int32_t>(i);  // said twice, the later rank counts
  }
  return -1;
}

const Bpe::Merge* Bpe::merge_of(int32_t left, int32_t right) const {
  const uint64_t pair = pair_of(left, right);
  const int32_t place = merges_at_.find(
      fold(pair ^ seed_, seed_ | 1), [&](int32_t known) { return merges_[static_cast<size_t>(known)].pair == pair; });
  return place < 0 ? nullptr : &merges_[static_cast<size_t>(place)];
}

bool Bpe::add_bytes(std::string_view character, std::vector<Symbol>& word) const {
  const size_t before = word.size();
  for (const char byte : character) {
    char name[7];
    std::snprintf(name, sizeof name, "<0x%02X>", static_cast<unsigned>(static_cast<uint8_t>(byte)));
    const int32_t id = id_of(name);
    if (id < 0) {
      word.resize(before);
      return false;
    }
    word.push_back({id, -1, -1, false});
  }
  return true;
}

std::vector<Bpe::Symbol> Bpe::symbols(std::string_view word) const {
  std::vector<Symbol> found;
  found.reserve(word.size());
  for (size_t at = 0, length = 0; at < word.size(); at += length) {
    length = length_of(word[at]);
    const std::string_view character = word.substr(at, length);
    const int32_t id = id_of(character);
    if (id >= 0)
      found.push_back({id, -1, -1, false});
    else if (bytes_)
      add_bytes(character, found);
  }
  for (size_t i = 0; i < found.size(); ++i) {
    found[i].before = static_cast<int32_t>(i) - 1;
    found[i].after = i + 1 < found.size() ? static_cast<int32_t>(i) + 1 : -1;
  }
  return found;
}

void Bpe::encode(std::string_view word, std::vector<int32_t>& ids) const {
  if (whole_) {
    if (const int32_t id = id_of(word); id >= 0) {
      ids.push_back(id);
      return;
    }
  }
  std::vector<Symbol> found = symbols(word);
  std::priority_queue<Candidate> queue;
  const auto consider = [&](int32_t at) {
    if (at < 0 || found[static_cast<size_t>(at)].after < 0) return;
    const Symbol& left = found[static_cast<size_t>(at)];
    if (const Merge* merge = merge_of(left.id, found[static_cast<size_t>(left.after)].id))
      queue.push({merge->rank, at, merge->id});
  };
  for (size_t i = 0; i + 1 < found.size(); ++i) consider(static_cast<int32_t>(i));
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = found[static_cast<size_t>(best.at)];
    if (left.gone || left.after < 0) continue;
    Symbol& right = found[static_cast<size_t>(left.after)];
    const Merge* merge = merge_of(left.id, right.id);
    if (!merge || merge->id != best.id) continue;  // the pair has changed since
    left.id = best.id, left.after = right.after, right.gone = true;
    if (left.after >= 0) found[static_cast<size_t>(left.after)].before = best.at;
    consider(left.before);
    consider(best.at);
  }
  for (const Symbol& symbol : found)
    if (!symbol.gone) ids.push_back(symbol.id);
}

}  // namespace flyweight
