// A mapped file's pages become anonymous huge ones, in their place: addresses stay, bytes stay, and a thread that reads them
// meanwhile notices nothing.  A mapping is there at once, but decoding from it is slower than from memory of one's own,
// at any place where the host keeps a file's pages; so it moves, run by run, when there is time.
//
// A run is read from the file into memory that was reserved for it, made read only, and put over the mapping in one call of
// the system.  What the system refuses (no huge pages, no memory, a file that became shorter) ends the moving, and the rest
// stays mapped; reading the file, not the mapping, is what lets a file cut short be an answer here and not a signal.  Weights
// that are still mapped have no such protection, before, while or after: kept files are written under another name, renamed
// and removed, never cut, and belong to one user.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <memory>
#include <mutex>
#include <new>
#include <string>

#include "../pool.h"
#include "pages.h"

namespace flyweight {

inline bool grants_huge_pages() {
  std::ifstream setting("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string words;
  return std::getline(setting, words) && words.find("[never]") == std::string::npos;
}

class Moving {
 public:
  // Of a file's pages: its whole huge ones.  The descriptor may be closed.  Nothing moves where there is no room.
  Moving(std::shared_ptr<Pages> pages, int file) : pages_(std::move(pages)) {
#if defined(MREMAP_FIXED)
    const size_t size = pages_->size() / kHugePage * kHugePage;
    if (size == 0 || !reserve(size)) return;
    file_ = fcntl(file, F_DUPFD_CLOEXEC, 0);
    if (file_ >= 0) size_ = size;
    else munmap(room_, size);
#endif
  }
  Moving(const Moving&) = delete;
  ~Moving() { end(); }

  // Bytes that have not moved and still may.
  size_t left() {
    const std::lock_guard<std::mutex> lock(busy_);
    return size_ - moved_;
  }

  // Moves `count` more bytes or what is left, in whole huge pages.
  void move(Pool& pool, size_t count) {
    const std::lock_guard<std::mutex> lock(busy_);
    count = std::min(round_up(std::min(count, size_ - moved_), kHugePage), size_ - moved_);
    if (count == 0) return;
    if (!copy(pool, count) || !replace(count)) return end();
    moved_ += count;
    if (moved_ == size_) end();
  }

 private:
  // One reservation, so that pieces of it which lie side by side again are one mapping to the system.
  bool reserve(size_t size) {
    void* p = mmap(nullptr, size + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return false;
    auto* const first = static_cast<uint8_t*>(p);
    room_ = reinterpret_cast<uint8_t*>(round_up(reinterpret_cast<uintptr_t>(p), kHugePage));
    const auto before = static_cast<size_t>(room_ - first);
    if (before) munmap(first, before);
    munmap(room_ + size, kHugePage - before);
#if defined(MADV_HUGEPAGE)
    madvise(room_, size, MADV_HUGEPAGE);
#endif
    return true;
  }

  bool copy(Pool& pool, size_t count) {
    std::atomic<bool> whole{true};
    pool.run(static_cast<int64_t>(count / kHugePage), [&](int64_t page, int) {
      size_t at = moved_ + static_cast<size_t>(page) * kHugePage;
      const size_t end = at + kHugePage;
      while (at < end) {
        const ssize_t read = pread(file_, room_ + at, end - at, static_cast<off_t>(at));
        if (read <= 0) {
          whole = false;
          return;
        }
        at += static_cast<size_t>(read);
      }
    });
    return whole;
  }

  bool replace(size_t count) {
#if defined(MREMAP_FIXED)
    uint8_t *const from = room_ + moved_, *const to = pages_->data() + moved_;
    if (mprotect(from, count, PROT_READ) != 0) return false;
    if (mremap(from, count, count, MREMAP_MAYMOVE | MREMAP_FIXED, to) != MAP_FAILED) return true;
    // The system may have dropped the mapping before it failed; one more of the same bytes does no harm.
    const auto offset = static_cast<off_t>(moved_);
    if (mmap(to, count, PROT_READ, MAP_SHARED | MAP_FIXED, file_, offset) == MAP_FAILED) throw std::bad_alloc();
#endif
    return false;
  }

  void end() {
    if (size_ > moved_) munmap(room_ + moved_, size_ - moved_);  // what moved may be another's address by now
    if (file_ >= 0) close(file_);
    size_ = moved_ = 0, file_ = -1;
  }

  std::mutex busy_;
  std::shared_ptr<Pages> pages_;
  uint8_t* room_ = nullptr;  // of what has not moved
  size_t size_ = 0, moved_ = 0;
  int file_ = -1;
};

}  // namespace flyweight
