#ifndef ONNXGRAD_TESTS_FUZZ_MUTATOR_H_
#define ONNXGRAD_TESTS_FUZZ_MUTATOR_H_

#include <cstdint>
#include <string>
#include <vector>

namespace onnxgrad::fuzz {

/// splitmix64: the same numbers on every machine.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    state_ += 0x9e3779b97f4a7c15;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  /// In [0, n); n > 0.
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(next() % n); }
  template <class T>
  const T& pick(const std::vector<T>& values) {
    return values[below(values.size())];
  }
  bool one_in(std::size_t n) { return below(n) == 0; }

 private:
  std::uint64_t state_;
};

/// A changed copy of a serialized model: bytes flipped, cut or moved, or fields of the message set
/// to what no exporter would write. Equal arguments give equal bytes.
std::string mutate(const std::string& model, std::uint64_t seed);

}  // namespace onnxgrad::fuzz

#endif  // ONNXGRAD_TESTS_FUZZ_MUTATOR_H_
