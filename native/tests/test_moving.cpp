// A mapped file's pages that move: the same bytes at the same addresses, before, between and after; one mapping in the end;
// and what the system refuses leaves them where they were.
#include "../bindings/moving.h"

#include <sys/resource.h>

#include <cstdio>
#include <string>
#include <thread>

#include "check.h"

namespace {

using namespace flyweight;

constexpr size_t kTail = 12345;  // of a huge page: it stays

uint8_t byte_at(size_t i) { return static_cast<uint8_t>(i * 2654435761u >> 13); }

struct File {
  std::FILE* stream = std::tmpfile();
  int number = fileno(stream);
  explicit File(size_t size) {
    std::vector<uint8_t> bytes(size);
    for (size_t i = 0; i < size; ++i) bytes[i] = byte_at(i);
    CHECK(std::fwrite(bytes.data(), 1, size, stream) == size && std::fflush(stream) == 0, "the file is written");
  }
  ~File() { close(); }
  void close() {
    if (stream) std::fclose(stream);
    stream = nullptr;
  }
};

void check_bytes(const Pages& pages, size_t size) {
  for (size_t i = 0; i < size; ++i) CHECK(pages.data()[i] == byte_at(i), "byte %zu", i);
}

// Mappings with an address of these.
int mappings(const uint8_t* data, size_t size) {
  std::ifstream maps("/proc/self/maps");
  int found = 0;
  for (std::string line; std::getline(maps, line);) {
    unsigned long long begin = 0, end = 0;
    CHECK(std::sscanf(line.c_str(), "%llx-%llx", &begin, &end) == 2, "%s", line.c_str());
    const auto first = reinterpret_cast<uintptr_t>(data);
    found += begin < first + size && end > first;
  }
  return found;
}

void moves_run_by_run(int threads) {
  constexpr size_t kSize = 9 * kHugePage + kTail;
  Pool pool(threads);
  File file(kSize);
  auto pages = std::make_shared<Pages>(file.number, kSize);
  Moving moving(pages, file.number);
  file.close();  // and with it its only name
  CHECK(moving.left() == 9 * kHugePage, "%zu", moving.left());
  std::atomic<bool> over{false};
  std::thread reader([&] {
    while (!over) check_bytes(*pages, kSize);
  });
  moving.move(pool, 0);
  CHECK(moving.left() == 9 * kHugePage, "nothing was asked for");
  moving.move(pool, 1);
  CHECK(moving.left() == 8 * kHugePage, "a huge page is the least");
  check_bytes(*pages, kSize);
  moving.move(pool, 3 * kHugePage);
  CHECK(moving.left() == 5 * kHugePage, "%zu", moving.left());
  check_bytes(*pages, kSize);
  CHECK(mappings(pages->data(), kSize) == 2, "what moved is one mapping, the rest another");
  moving.move(pool, SIZE_MAX);
  CHECK(moving.left() == 0, "%zu", moving.left());
  moving.move(pool, kHugePage);  // is nothing
  over = true;
  reader.join();
  check_bytes(*pages, kSize);
  CHECK(mappings(pages->data(), kSize) == 2, "the tail alone is mapped");
}

void a_file_cut_short_ends_it() {
  constexpr size_t kSize = 4 * kHugePage;
  Pool pool(2);
  File file(kSize);
  auto pages = std::make_shared<Pages>(file.number, kSize);
  Moving moving(pages, file.number);
  moving.move(pool, kHugePage);
  CHECK(ftruncate(file.number, 2 * kHugePage + 4096) == 0, "the file is cut");
  moving.move(pool, 2 * kHugePage);
  CHECK(moving.left() == 0, "%zu", moving.left());
  check_bytes(*pages, 2 * kHugePage + 4096);
}

void no_room_leaves_it_mapped() {
  constexpr size_t kSize = 2 * kHugePage;
  Pool pool(1);
  File file(kSize);
  auto pages = std::make_shared<Pages>(file.number, kSize);
  rlimit before{};
  CHECK(getrlimit(RLIMIT_AS, &before) == 0, "a limit");
  const rlimit none{1, before.rlim_max};
  CHECK(setrlimit(RLIMIT_AS, &none) == 0, "no more addresses");
  const bool limited = mmap(nullptr, kSize, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED;
  Moving moving(pages, file.number);
  CHECK(setrlimit(RLIMIT_AS, &before) == 0, "as before");
  CHECK(moving.left() == 0 || !limited, "%zu", moving.left());  // emulators let the limit pass
  moving.move(pool, kSize);
  check_bytes(*pages, kSize);
}

// What moved away from the reservation may be given to others; the end must not take it from them.
void the_end_takes_nothing_of_others() {
  Pool pool(1);
  File file(4 * kHugePage);
  auto pages = std::make_shared<Pages>(file.number, 4 * kHugePage);
  std::vector<void*> others;
  {
    Moving moving(pages, file.number);
    moving.move(pool, 2 * kHugePage);
    for (int i = 0; i < 64; ++i) {
      void* p = mmap(nullptr, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      CHECK(p != MAP_FAILED, "memory");
      others.push_back(std::memset(p, 7, 1 << 16));
    }
  }
  for (void* p : others) {
    CHECK(*static_cast<uint8_t*>(p) == 7, "another's memory");
    munmap(p, 1 << 16);
  }
  check_bytes(*pages, 4 * kHugePage);
}

}  // namespace

int main() {
#if defined(MREMAP_FIXED)
  for (const int threads : {1, 2, 4}) moves_run_by_run(threads);
  a_file_cut_short_ends_it();
  no_room_leaves_it_mapped();
  the_end_takes_nothing_of_others();
#endif
}
