#ifndef ONNXGRAD_TESTS_CUDA_STANDINS_MEMORY_H_
#define ONNXGRAD_TESTS_CUDA_STANDINS_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <map>

namespace onnxgrad::cuda_standin {

/// Memory of the card: host memory behind addresses that fault as pointers, filled with 0xFF.
class Memory {
 public:
  /// 0: more than the card has.
  std::uint64_t allocate(std::size_t bytes);
  /// False: it is no memory of the card.
  bool free(std::uint64_t address);
  /// A pointer to memory of which `bytes` belong to one allocation; nullptr: there is none.
  std::byte* pointer(std::uint64_t address, std::size_t bytes) const;
  bool contains(std::uint64_t address) const { return pointer(address, 0) != nullptr; }
  std::size_t used() const { return used_; }

  static constexpr std::size_t kCapacity = std::size_t{4} << 30;

 private:
  struct Block {
    std::byte* memory = nullptr;
    std::size_t bytes = 0;
  };
  std::map<std::uint64_t, Block> blocks_;  // by tagged address
  std::size_t used_ = 0;
};

}  // namespace onnxgrad::cuda_standin

#endif  // ONNXGRAD_TESTS_CUDA_STANDINS_MEMORY_H_
