// Memory that matrix kernels read: on cache lines, in huge pages where it is large.
#pragma once

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <new>

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

}  // namespace baton
