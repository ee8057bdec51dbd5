#ifndef ONNXGRAD_TESTS_FUZZ_FEEDER_H_
#define ONNXGRAD_TESTS_FUZZ_FEEDER_H_

#include <vector>

#include "mutator.h"
#include "stages.h"

namespace onnxgrad::fuzz {

/// Makes feeds for a mutant: small numbers, open dimensions as its seed has them.
class Feeder {
 public:
  /// `odd`: whole numbers are sometimes out of any range.
  Feeder(const Seed& seed, Random& random, bool odd) : seed_(seed), random_(random), odd_(odd) {}

  NamedTensors feeds(const std::vector<ValueInfo>& inputs);
  Tensor feed(const ValueInfo& info);

  /// Open dimensions from 0 to 3; integers at the limits of their type, or near them; some numbers
  /// that are not finite.
  NamedTensors hostile_feeds(const std::vector<ValueInfo>& inputs);

 private:
  Dims dims_of(const ValueInfo& info, bool hostile);
  void set_limits(Tensor& tensor);
  void set_odd_numbers(Tensor& tensor);

  const Seed& seed_;
  Random& random_;
  bool odd_;
};

}  // namespace onnxgrad::fuzz

#endif  // ONNXGRAD_TESTS_FUZZ_FEEDER_H_
