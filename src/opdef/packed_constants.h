#ifndef ONNXGRAD_OPDEF_PACKED_CONSTANTS_H_
#define ONNXGRAD_OPDEF_PACKED_CONSTANTS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "onnxgrad/tensor.h"

namespace onnxgrad::opdef {

/// Constants in the forms that kernels read, each once for all plans of a session. A form lives as
/// long as a kernel holds it. Not thread-safe.
class PackedConstants {
 public:
  /// Packs at most `most_bytes`.
  explicit PackedConstants(std::int64_t most_bytes = std::numeric_limits<std::int64_t>::max())
      : most_bytes_(most_bytes) {}

  /// `constant` in the form `form`, as `pack` writes it in `size_bytes`; equal names mean equal
  /// forms. nullptr if it exceeds the limit.
  std::shared_ptr<const Tensor> get(const Tensor& constant, std::string_view form,
                                    std::int64_t size_bytes, const std::function<Tensor()>& pack);
  /// Size of all forms that are in use.
  std::int64_t size_bytes() const;

 private:
  // The constant is kept alive, so that nothing else has its address.
  struct Packed {
    Tensor constant;
    Tensor packed;
  };
  struct Entry {
    const std::byte* constant = nullptr;
    std::string form;
    std::weak_ptr<const Packed> packed;
  };

  std::int64_t most_bytes_;
  std::vector<Entry> entries_;
};

}  // namespace onnxgrad::opdef

#endif  // ONNXGRAD_OPDEF_PACKED_CONSTANTS_H_
