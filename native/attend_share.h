// Which sequences of a step begin with the same blocks, so that what they share is read once for all of them.
//
// Knows tables and positions only.  Compiled once.
#pragma once

#include <cstdint>
#include <vector>

namespace flyweight {

// Where the tokens of a call are: sequences of `starts`, their positions, and the blocks that hold their context.
struct AttendPlace {
  int64_t sequences = 0;
  const int32_t* starts = nullptr;     // [S+1]
  const int32_t* positions = nullptr;  // [T]
  const int32_t* tables = nullptr;     // [S, table_width]
  int64_t table_width = 0, block = 1;
};

// Positions [0, end) of these sequences lie in the same blocks, and all their tokens come after them; `end` is a
// multiple of kTile.
struct SharedPrefix {
  std::vector<int32_t> sequences;
  int32_t end;
};

// Disjoint groups that save the most reading, as far as one level of sharing goes.  A sequence of more than `most`
// tokens pays for its reading by itself.
std::vector<SharedPrefix> shared_prefixes(const AttendPlace& place, int64_t most);

}  // namespace flyweight
