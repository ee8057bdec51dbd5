#ifndef ONNXGRAD_RUNTIME_HOST_STEPS_H_
#define ONNXGRAD_RUNTIME_HOST_STEPS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "opdef/kernel.h"
#include "runtime/plan.h"

// Steps of a plan for a device that the CPU runs. They work on a mirror of the device's memory:
// host memory for the places that such a step reads or writes, in which operands that share bytes
// on the device share them too. Segment::transfers says what is copied when.

namespace onnxgrad::runtime {

/// Host memory for ranges of the places of a plan.
class Mirror {
 public:
  /// Adds a range, before allocate().
  void add(const Location& at, std::int64_t bytes);
  void allocate();
  /// The mirror of an added place; nullptr: it is none of the device's.
  std::byte* at(const Location& location) const;
  std::int64_t bytes() const { return bytes_; }

 private:
  struct Range {
    std::int64_t end = 0;
    std::int64_t offset = 0;  ///< in the block
  };
  using Place = std::pair<Location::Kind, std::int64_t>;

  static Place place_of(const Location& location);
  static std::int64_t begin_of(const Location& location);

  std::map<Place, std::map<std::int64_t, Range>> ranges_;  // by their first byte; they do not meet
  std::int64_t bytes_ = 0;
  std::shared_ptr<std::byte> memory_;
};

class HostSteps {
 public:
  /// The plan outlives this.
  explicit HostSteps(const Plan& plan);

  /// Feed `i` is in host memory, or if `data` is nullptr, on the device.
  void bind(std::size_t i, const std::byte* data);
  bool is_bound(std::size_t i) const { return feeds_[i].data != nullptr; }
  std::byte* mirror(const Location& location) const { return mirror_.at(location); }
  std::int64_t mirror_bytes() const { return mirror_.bytes(); }
  /// Runs step `i`, whose operands are on the host.
  void run(std::size_t i, const opdef::Launch& launch) const;
  /// Argument `arg` of step `i`.
  const std::byte* argument(std::size_t i, std::size_t arg) const;

 private:
  struct Feed {
    const std::byte* data = nullptr;
    std::vector<std::size_t> args = {};  ///< positions in args_
  };

  const Plan& plan_;
  Mirror mirror_;
  std::vector<std::size_t> first_args_;  // one per step of the plan
  std::vector<std::byte*> args_;         // arguments of the steps that are on the host
  std::vector<Feed> feeds_;
};

}  // namespace onnxgrad::runtime

#endif  // ONNXGRAD_RUNTIME_HOST_STEPS_H_
