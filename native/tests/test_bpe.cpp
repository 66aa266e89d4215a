// Merging against its definition: join the pair of lowest rank, leftmost among equals, until none is left.
#include <map>
#include <random>
#include <string>
#include <vector>

#include "../bpe.h"
#include "check.h"

namespace fw = flyweight;

namespace {

struct Owned {
  std::string bytes;
  std::vector<int64_t> begin, end;
  void add(const std::string& text) {
    begin.push_back(static_cast<int64_t>(bytes.size()));
    bytes += text;
    end.push_back(static_cast<int64_t>(bytes.size()));
  }
  fw::Strings view() const { return {bytes.data(), begin.data(), end.data(), static_cast<int64_t>(begin.size())}; }
};

std::vector<int32_t> by_definition(const std::string& word, const std::map<std::string, int32_t>& ids,
                                   const std::map<std::pair<std::string, std::string>, int>& ranks) {
  std::vector<std::string> parts;
  for (const char c : word)
    if (ids.count(std::string(1, c))) parts.emplace_back(1, c);
  for (;;) {
    int best = -1;
    size_t at = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto found = ranks.find({parts[i], parts[i + 1]});
      if (found != ranks.end() && (best < 0 || found->second < best)) best = found->second, at = i;
    }
    if (best < 0) break;
    parts[at] += parts[at + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
  std::vector<int32_t> found;
  for (const std::string& part : parts) found.push_back(ids.at(part));
  return found;
}

void random_vocabulary(std::mt19937& random) {
  std::vector<std::string> pieces{"a", "b", "c"};
  Owned merges;
  std::map<std::pair<std::string, std::string>, int> ranks;
  for (int i = 0; i < 30; ++i) {
    const std::string left = pieces[random() % pieces.size()], right = pieces[random() % pieces.size()];
    if (ranks.count({left, right})) continue;
    ranks[{left, right}] = static_cast<int>(merges.begin.size());
    merges.add(left + " " + right);
    pieces.push_back(left + right);
  }
  Owned vocabulary;
  std::map<std::string, int32_t> ids;
  for (const std::string& piece : pieces) {
    ids[piece] = static_cast<int32_t>(vocabulary.begin.size());
    vocabulary.add(piece);
  }
  const std::vector<uint8_t> uses(pieces.size(), 1);
  fw::Bpe bpe(vocabulary.view(), uses.data(), false, false);
  CHECK(bpe.add_merges(merges.view()) == -1, "every merge names pieces");
  for (int i = 0; i < 40; ++i) {
    std::string word;
    for (size_t length = random() % 30; word.size() < length;) word += "abcd"[random() % 4];  // no piece has d
    std::vector<int32_t> ours;
    bpe.encode(word, ours);
    CHECK(ours == by_definition(word, ids, ranks), "%s", word.c_str());
  }
}

void odd_inputs() {
  Owned pieces, merges, wrong;
  for (const char* piece : {"", "x", "<0xC3>", "<0xA9>", "xy", "y"}) pieces.add(piece);
  const std::vector<uint8_t> uses{1, 1, 2, 2, 1, 1};
  merges.add("x y");
  for (const char* merge : {"x y", "", "x"}) wrong.add(merge);
  fw::Bpe bpe(pieces.view(), uses.data(), true, true);
  CHECK(bpe.add_merges(merges.view()) == -1, "every merge names pieces");
  std::vector<int32_t> ids;
  bpe.encode("\xc3\xa9xyz", ids);  // bytes for a character no piece has; z is left out
  CHECK((ids == std::vector<int32_t>{2, 3, 4}), "bytes, then the piece");
  ids.clear();
  bpe.encode("xy", ids);
  bpe.encode("", ids);
  bpe.encode("\xc3", ids);  // a character cut short
  CHECK((ids == std::vector<int32_t>{4, 2}), "a whole piece, then a byte");
  fw::Bpe other(pieces.view(), uses.data(), false, false);
  CHECK(other.add_merges(wrong.view()) == 1, "the empty merge");
}

}  // namespace

int main() {
  std::mt19937 random(5);
  for (int i = 0; i < 100; ++i) random_vocabulary(random);
  odd_inputs();
  return 0;
}
