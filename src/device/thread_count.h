#ifndef ONNXGRAD_DEVICE_THREAD_COUNT_H_
#define ONNXGRAD_DEVICE_THREAD_COUNT_H_

#include <filesystem>
#include <optional>
#include <string_view>

namespace onnxgrad::device {

/// Processors that several processes of a job share.
struct SharedProcessors {
  double processors = 0;  ///< for this process; 0: those of its affinity mask
  int processes = 1;      ///< that share the quota of the control group
};

/// Number of threads that should run at once: processors in this thread's affinity mask, at most
/// what the quota of the control group allows and OMP_NUM_THREADS requests, at least 1. Reads a few
/// files below /proc and /sys, and the environment (dist/job.cpp does, and no other file of the
/// library).
int available_threads(const SharedProcessors& shared = {});

/// The number that a value of OMP_NUM_THREADS requests: of a list ("4,2", for nested regions) the
/// first. nullopt for anything but a positive integer. OpenMP 5.2, 21.1.2.
std::optional<int> openmp_threads(std::string_view text);

/// Whole processors that the smallest CPU quota of a control group (version 2) and its ancestors
/// allows, at least 1; nullopt without a quota. `root` is where control groups are mounted,
/// `membership` the content of /proc/self/cgroup.
std::optional<int> quota_threads(const std::filesystem::path& root, std::string_view membership);

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_THREAD_COUNT_H_
