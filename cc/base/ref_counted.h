// Intrusive reference counting: one pointer a reference, no control block.
// Chunks, items and buffers are held by the million, so the 16 bytes and the
// second allocation of std::shared_ptr would show.
#ifndef REVERB_TF_CC_BASE_REF_COUNTED_H_
#define REVERB_TF_CC_BASE_REF_COUNTED_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace reverb_tf {

// Base of T; the last Unref() calls T::Destroy(const T*), a static function of
// T that frees the object in the way it was made. Thread-safe.
template <typename T>
class RefCounted {
 public:
  RefCounted() = default;
  RefCounted(const RefCounted&) = delete;
  RefCounted& operator=(const RefCounted&) = delete;

  void Ref() const { count_.fetch_add(1, std::memory_order_relaxed); }
  void Unref() const {
    if (count_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      T::Destroy(static_cast<const T*>(this));
    }
  }
  bool unique() const { return count_.load(std::memory_order_acquire) == 1; }

 private:
  mutable std::atomic<uint32_t> count_{1};
};

// Owns one reference.
template <typename T>
class RefPtr {
 public:
  RefPtr() = default;
  RefPtr(std::nullptr_t) {}  // NOLINT: implicit
  // Takes over the reference that `p` was born with.
  static RefPtr Adopt(T* p) {
    RefPtr r;
    r.p_ = p;
    return r;
  }
  // Takes a reference of its own.
  static RefPtr Share(T* p) {
    if (p) p->Ref();
    return Adopt(p);
  }

  RefPtr(const RefPtr& o) : p_(o.p_) {
    if (p_) p_->Ref();
  }
  RefPtr(RefPtr&& o) noexcept : p_(std::exchange(o.p_, nullptr)) {}
  template <typename U>
  RefPtr(const RefPtr<U>& o) : p_(o.get()) {  // NOLINT: implicit upcast
    if (p_) p_->Ref();
  }
  template <typename U>
  RefPtr(RefPtr<U>&& o) noexcept : p_(o.release()) {}  // NOLINT: implicit upcast
  RefPtr& operator=(RefPtr o) noexcept {
    std::swap(p_, o.p_);
    return *this;
  }
  ~RefPtr() {
    if (p_) p_->Unref();
  }

  T* get() const { return p_; }
  T* release() { return std::exchange(p_, nullptr); }
  T* operator->() const { return p_; }
  T& operator*() const { return *p_; }
  explicit operator bool() const { return p_ != nullptr; }
  bool operator==(const RefPtr& o) const { return p_ == o.p_; }
  bool operator!=(const RefPtr& o) const { return p_ != o.p_; }

 private:
  T* p_ = nullptr;
};

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_BASE_REF_COUNTED_H_
