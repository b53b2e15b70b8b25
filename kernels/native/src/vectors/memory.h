// Memory that matrix kernels read: on cache lines, in huge pages where it is large.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace baton {

// A zeroed array that grows when it must and never shrinks.
template <class T>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t size) { reserve(size); }
  Buffer(Buffer&& other) noexcept : data_(other.data_), size_(other.size_) {
    other.data_ = nullptr;
    other.size_ = 0;
  }
  Buffer& operator=(Buffer&&) = delete;
  ~Buffer() { std::free(data_); }

  // Room for `size` elements. What was in it is lost if it has to grow.
  void reserve(size_t size) {
    if (size <= size_) return;
    std::free(data_);
    data_ = nullptr;
    size_ = 0;
    const size_t huge = size_t(2) << 20;
    // A kernel may prefetch past the end, and a vector store may round up to a cache line.
    const size_t wanted = size * sizeof(T) + 64;
    void* data = nullptr;
    if (posix_memalign(&data, wanted >= huge ? huge : 64, wanted) != 0) throw std::bad_alloc();
    data_ = static_cast<T*>(data);
#if defined(MADV_HUGEPAGE)
    // Only huge pages that are used whole: the last one could be almost empty.
    if (wanted >= huge) madvise(data, wanted / huge * huge, MADV_HUGEPAGE);
#endif
    std::memset(data, 0, wanted);
    size_ = size;
  }

  T* data() { return data_; }
  const T* data() const { return data_; }
  size_t size() const { return size_; }
  T& operator[](size_t index) { return data_[index]; }
  const T& operator[](size_t index) const { return data_[index]; }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
};

// Huge pages that matrices share: many are smaller than a page, or leave half of their last one empty.
// Memory is used again when all of a chunk was given back, as by a model that is gone.
class HugePages {
 public:
  static HugePages& shared() {
    static HugePages* pages = new HugePages;  // never deleted: matrices may outlive static objects
    return *pages;
  }

  // Zeroed memory on a cache line.
  void* take(size_t size) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (chunks_.empty() || chunks_.back().size - chunks_.back().used < size) grow(size);
    Chunk& chunk = chunks_.back();
    void* data = chunk.begin + chunk.used;
    chunk.used += size;
    ++chunk.num_taken;
    return data;
  }

  void give_back(void* data) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto chunk = std::find_if(chunks_.begin(), chunks_.end(), [&](const Chunk& each) {
      return data >= each.begin && data < each.begin + each.size;
    });
    if (--chunk->num_taken > 0) return;
    munmap(chunk->mapped, chunk->size + kPage);
    chunks_.erase(chunk);
  }

 private:
  static constexpr size_t kPage = size_t(2) << 20;
  static constexpr size_t kChunk = size_t(256) << 20;
  struct Chunk {
    void* mapped;
    char* begin;
    size_t size;
    size_t used;
    int num_taken;
  };

  // Pages are there once they are written to: a chunk that stays almost empty costs nothing.
  void grow(size_t size) {
    const size_t wanted = std::max(kChunk, (size + kPage - 1) / kPage * kPage);
    void* mapped = mmap(nullptr, wanted + kPage, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) throw std::bad_alloc();
    const uintptr_t begin = (reinterpret_cast<uintptr_t>(mapped) + kPage - 1) / kPage * kPage;
#if defined(MADV_HUGEPAGE)
    madvise(reinterpret_cast<void*>(begin), wanted, MADV_HUGEPAGE);
#endif
    chunks_.push_back({mapped, reinterpret_cast<char*>(begin), wanted, 0, 0});
  }

  std::mutex mutex_;
  std::vector<Chunk> chunks_;
};

// A zeroed array of a matrix, in shared huge pages.
template <class T>
class HugeBuffer {
 public:
  HugeBuffer() = default;
  explicit HugeBuffer(size_t size) { reserve(size); }
  HugeBuffer(HugeBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  HugeBuffer& operator=(HugeBuffer&&) = delete;
  ~HugeBuffer() {
    if (data_ != nullptr) HugePages::shared().give_back(data_);
  }

  // Room for `size` elements, once.
  void reserve(size_t size) {
    // A vector store may round up to a cache line.
    data_ = static_cast<T*>(HugePages::shared().take((size * sizeof(T) + 127) / 64 * 64));
    size_ = size;
  }

  T* data() { return data_; }
  const T* data() const { return data_; }
  size_t size() const { return size_; }
  T& operator[](size_t index) { return data_[index]; }
  const T& operator[](size_t index) const { return data_[index]; }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace baton
