// The products of gemm_pairs.h: a few tokens with pairs of tiles, opened just ahead; or many, with eight tiles at a time,
// opened into L2.
#include "gemm_pairs.h"

#if defined(FW_ISA_AMX)
#include "amx.h"

namespace flyweight::FW_ISA {
namespace {

constexpr int64_t kFew = kFewOpened / kTileRows;  // panels whose sums stay in registers until K ends
constexpr int64_t kEarly = 2;     // groups that are opened ahead, for a few tokens
constexpr int64_t kStretch = 16;  // groups of many panels: those of two panels stay in L1 while eight tiles pass
constexpr int64_t kDepth = 32;    // groups of eight tiles that are opened at a time, into L2
constexpr int64_t kManyPanels = 32;

// Registers 0 to 3 are sums, [panel][tile]; 4 and 5 are panels, 6 and 7 tiles.
class PanelPair {
 public:
  PanelPair(const LinearJob& job, int64_t count) : job_(job), count_(count), token_(token_bytes(Mode::bf16, job.k)) {}
  ~PanelPair() {
    if (shaped_[0]) TileShapes::release();
  }

  // Panel p, and the next if it is in the range.
  void take(int64_t p, Range panels) {
    two_ = p + 1 < panels.end;
    token = start(p), tokens = start(p + 1 + two_) - token;
    for (const int i : {0, 1}) {
      const int64_t at = two_ ? p + i : p;
      x_[i] = job_.panels + start(at) * token_;
      size_[i] = start(at + 1) - start(at);
    }
    shape();
  }

  bool two() const { return two_; }
  const uint8_t* place(int i, int64_t group) const { return x_[i] + group * size_[i] * 64; }
  int64_t step(int i) const { return size_[i] * 64; }
  float* sums(float* of_tile, int panel) const { return of_tile + panel * size_[0] * kLanes; }

  int64_t token = 0, tokens = 0;

 private:
  int64_t start(int64_t panel) const { return panel_start(job_.tokens, count_, panel); }

  void shape() {
    if (size_[0] == shaped_[0] && size_[1] == shaped_[1]) return;
    TileShapes shapes;
    for (const int i : {0, 1}) {
      shaped_[i] = size_[i];
      for (const int sum : {0, 1}) shapes.set(2 * i + sum, size_[i], 64);
      shapes.set(4 + i, size_[i], 64);
      shapes.set(6 + i, kTileRows, 64);
    }
    shapes.load();
  }

  const LinearJob& job_;
  int64_t count_, token_;
  bool two_ = false;
  const uint8_t* x_[2] = {};
  int64_t size_[2] = {}, shaped_[2] = {};
};

// Calls f with constants (register, tile, panel) for each sum there is.
template <int Tiles, int Panels, class F>
FW_INLINE void each_sum(F f) {
  each<Panels>([&](auto p) FW_LAMBDA {
    each<Tiles>([&](auto i) FW_LAMBDA { f(std::integral_constant<int, 2 * p + i>{}, i, p); });
  });
}

// Adds the products of `groups` opened groups; the second tile's are `apart` bytes further.  `Once`: they are not read
// again soon, and leave L1 to the panels.
template <int Tiles, int Panels, bool Once>
FW_INLINE void add_groups(const PanelPair& x, int64_t group, int64_t groups, const uint8_t* opened, int64_t apart) {
  const uint8_t *first = x.place(0, group), *second = x.place(1, group);
  for (int64_t g = 0; g < groups; ++g, opened += kOpenedBytes, first += x.step(0), second += x.step(1)) {
    tile_load<4>(first, 64);
    Once ? tile_load_once<6>(opened, 64) : tile_load<6>(opened, 64);
    tile_dot_bf16<0, 4, 6>();
    if constexpr (Tiles == 2) Once ? tile_load_once<7>(opened + apart, 64) : tile_load<7>(opened + apart, 64);
    if constexpr (Panels == 2) tile_load<5>(second, 64);
    if constexpr (Tiles == 2) tile_dot_bf16<1, 4, 7>();
    if constexpr (Panels == 2) tile_dot_bf16<2, 5, 6>();
    if constexpr (Tiles == 2 && Panels == 2) tile_dot_bf16<3, 5, 7>();
  }
}

class Product {
 public:
  Product(const LinearJob& job, const OpenPairs& open)
      : job_(job), open_(open), bytes_(tile_bytes(job.kind, job.k)), groups_((job.k + kGroup - 1) / kGroup),
        group_(bytes_ / groups_), x_(job, panel_count(job.tokens, kTileRows)) {}

  void run(Range tiles, Range panels) {
    const bool few = panels.end - panels.begin <= kFew;
    const int64_t step = few ? 2 : kSumTiles;
    if (few) x_.take(panels.begin, panels);
    for (int64_t i = tiles.begin; i < tiles.end; i += step) {
      const Range some{i, i + step < tiles.end ? i + step : tiles.end};
      few ? run_few(some) : run_many(some, panels);
    }
  }

 private:
  void run_few(Range tiles) {
    const bool two = tiles.end - tiles.begin == 2;
    if (x_.two())
      two ? sum_few<2, 2>(tiles.begin) : sum_few<1, 2>(tiles.begin);
    else
      two ? sum_few<2, 1>(tiles.begin) : sum_few<1, 1>(tiles.begin);
    many_[0].give(job_, tiles, x_.token, x_.tokens, true, 1 / opened_unit(job_.kind));
  }

  // Groups are opened kEarly ahead of their products, which are under way meanwhile.
  template <int Tiles, int Panels>
  void sum_few(int64_t tile) {
    each_sum<Tiles, Panels>([](auto r, auto, auto) FW_LAMBDA { tile_zero<r>(); });
    for (int64_t g = 0; g < kEarly && g < groups_; ++g) open_ahead<Tiles>(tile, g);
    for (int64_t g = 0; g < groups_; ++g) {
      add_groups<Tiles, Panels, false>(x_, g, 1, room_of(g), kOpenedBytes);
      if (g + kEarly < groups_) open_ahead<Tiles>(tile, g + kEarly);
    }
    each_sum<Tiles, Panels>([&](auto r, auto i, auto p) FW_LAMBDA { tile_store<r>(x_.sums(many_[0].of(i), p), 64); });
  }

  uint8_t* room_of(int64_t group) { return opened_ + group % (2 * kEarly) * 2 * kOpenedBytes; }

  template <int Tiles>
  FW_INLINE void open_ahead(int64_t tile, int64_t group) {
    (Tiles == 2 ? open_.two : open_.one)(job_.kind, job_.weight + tile * bytes_, bytes_, group, room_of(group));
  }

  // So many panels at a time that they and their sums stay in L2.
  void run_many(Range tiles, Range panels) {
    for (int64_t p = panels.begin; p < panels.end; p += kManyPanels)
      if (p + kManyPanels < panels.end) {
        run_panels(tiles, {p, p + kManyPanels}, tiles.begin);
      } else {
        run_panels(tiles, {p, panels.end}, tiles.end);
      }
  }

  // `next`: the tile that is opened after these.
  void run_panels(Range tiles, Range panels, int64_t next) {
    for (int64_t g = 0; g < groups_; g += kDepth) {
      const Opened opened = open(tiles, g);
      const bool last = g + opened.count == groups_;
      for (int64_t p = panels.begin; p < panels.end; p += 2) {
        x_.take(p, panels);
        Sums& sums = many_[groups_ <= kDepth ? 0 : (p - panels.begin) / 2];
        for (int64_t from = 0; from < opened.count; from += kStretch)
          add_stretch(opened, {from, from + kStretch < opened.count ? from + kStretch : opened.count}, sums);
        if (last) sums.give(job_, tiles, x_.token, x_.tokens, true, 1 / opened_unit(job_.kind));
        prefetch_part(last ? next : tiles.begin, last ? 0 : g + opened.count, p - panels.begin, panels.end - panels.begin);
      }
    }
  }

  // Groups [group, group + count) of some tiles, the first at `at`, the others `apart` bytes from each other.
  struct Opened {
    const uint8_t* at;
    int64_t apart, tiles, group, count;
  };

  Opened open(Range tiles, int64_t group) {
    const int64_t count = group + kDepth < groups_ ? kDepth : groups_ - group;
    const uint8_t* first = job_.weight + tiles.begin * bytes_;
    if (!open_.some) return {first + group * kOpenedBytes, bytes_, tiles.end - tiles.begin, group, count};
    for (int64_t i = 0; i < tiles.end - tiles.begin; ++i)
      open_.some(job_.kind, first + i * bytes_, bytes_, group, count, opened_ + i * kApart);
    return {opened_, kApart, tiles.end - tiles.begin, group, count};
  }

  // What is opened next, of at most eight tiles, in `parts`, two at a time: while panels are multiplied memory is idle.
  void prefetch_part(int64_t tile, int64_t group, int64_t part, int64_t parts) const {
    const int64_t count = group + kDepth < groups_ ? kDepth : groups_ - group, bytes = count * group_;
    const int64_t begin = bytes * part / parts, end = bytes * (part + 2 < parts ? part + 2 : parts) / parts;
    for (int64_t i = tile; i < tile + kSumTiles && i < tile_count(job_.n); ++i)
      prefetch(job_.weight + i * bytes_ + group * group_ + begin, end - begin);
  }

  // Some of the opened groups with two panels.
  void add_stretch(const Opened& opened, Range some, Sums& sums) {
    for (int64_t i = 0; i < opened.tiles; i += 2) {
      const bool two = i + 1 < opened.tiles;
      if (x_.two())
        two ? sum_many<2, 2>(opened, i, some, sums) : sum_many<1, 2>(opened, i, some, sums);
      else
        two ? sum_many<2, 1>(opened, i, some, sums) : sum_many<1, 1>(opened, i, some, sums);
    }
  }

  template <int Tiles, int Panels>
  void sum_many(const Opened& opened, int64_t i, Range some, Sums& sums) {
    const auto place = [&](int tile, int panel) { return x_.sums(sums.of(i + tile), panel); };
    const int64_t first = opened.group + some.begin;
    each_sum<Tiles, Panels>([&](auto r, auto tile, auto p) FW_LAMBDA {
      first == 0 ? tile_zero<r>() : tile_load<r>(place(tile, p), 64);
    });
    const uint8_t* at = opened.at + i * opened.apart + some.begin * kOpenedBytes;
    add_groups<Tiles, Panels, true>(x_, first, some.end - some.begin, at, opened.apart);
    each_sum<Tiles, Panels>([&](auto r, auto tile, auto p) FW_LAMBDA { tile_store<r>(place(tile, p), 64); });
  }

  static constexpr int64_t kApart = kDepth * kOpenedBytes;

  const LinearJob& job_;
  const OpenPairs& open_;
  int64_t bytes_, groups_, group_;
  PanelPair x_;
  Sums many_[kManyPanels / 2];
  alignas(64) uint8_t opened_[kSumTiles * kApart];
};

}  // namespace

void multiply_opened_pairs(const LinearJob& job, Range tiles, Range panels, const OpenPairs& open) {
  Product(job, open).run(tiles, panels);
}

}  // namespace flyweight::FW_ISA
#endif
