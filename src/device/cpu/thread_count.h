#ifndef ONNXGRAD_DEVICE_CPU_THREAD_COUNT_H_
#define ONNXGRAD_DEVICE_CPU_THREAD_COUNT_H_

#include <omp.h>

namespace onnxgrad::device {

/// The number of OpenMP threads that libraries called from this thread use, for the life of the
/// object. Other threads are not affected.
class ThreadCount {
 public:
  explicit ThreadCount(int threads) : previous_(omp_get_max_threads()) {
    if (threads != previous_) omp_set_num_threads(threads);
  }
  ~ThreadCount() {
    if (omp_get_max_threads() != previous_) omp_set_num_threads(previous_);
  }
  ThreadCount(const ThreadCount&) = delete;
  ThreadCount& operator=(const ThreadCount&) = delete;

 private:
  int previous_;
};

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_CPU_THREAD_COUNT_H_
