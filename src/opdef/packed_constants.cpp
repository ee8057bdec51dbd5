#include "opdef/packed_constants.h"

namespace onnxgrad::opdef {

std::shared_ptr<const Tensor> PackedConstants::get(const Tensor& constant, std::string_view form,
                                                   std::int64_t size_bytes,
                                                   const std::function<Tensor()>& pack) {
  const auto tensor_of = [](const std::shared_ptr<const Packed>& owner) {
    return std::shared_ptr<const Tensor>(owner, &owner->packed);
  };
  std::erase_if(entries_, [](const Entry& entry) { return entry.packed.expired(); });
  for (const Entry& entry : entries_) {
    if (entry.constant == constant.raw() && entry.form == form) {
      return tensor_of(entry.packed.lock());
    }
  }
  if (size_bytes > most_bytes_ - this->size_bytes()) return nullptr;
  const auto made = std::make_shared<const Packed>(Packed{.constant = constant, .packed = pack()});
  entries_.push_back({.constant = constant.raw(), .form = std::string(form), .packed = made});
  return tensor_of(made);
}

std::int64_t PackedConstants::size_bytes() const {
  std::int64_t total = 0;
  for (const Entry& entry : entries_) {
    if (const auto owner = entry.packed.lock()) total += owner->packed.size_bytes();
  }
  return total;
}

}  // namespace onnxgrad::opdef
