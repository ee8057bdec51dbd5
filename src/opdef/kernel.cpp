#include "opdef/kernel.h"

#include <algorithm>

#include "base/check.h"
#include "opdef/registry.h"

namespace onnxgrad::opdef {
namespace {

OpName key_of(std::string_view domain, std::string_view op_type) {
  const OpNameView name = registered_name(domain, op_type);
  return {.domain = std::string(name.domain), .op_type = std::string(name.op_type)};
}

}  // namespace

void KernelRegistry::add(std::string_view domain, std::string_view op_type, int rank,
                         KernelOfferFn offer) {
  std::vector<Entry>& entries = offers_[key_of(domain, op_type)];
  const auto place =
      std::ranges::find_if(entries, [rank](const Entry& e) { return e.rank < rank; });
  entries.insert(place, {.rank = rank, .offer = offer});
}

void KernelRegistry::add_dynamic(std::string_view domain, std::string_view op_type, DynamicFn fn) {
  const bool is_new = dynamic_.emplace(key_of(domain, op_type), fn).second;
  ONNXGRAD_ASSERT(is_new);
}

std::span<const KernelRegistry::Entry> KernelRegistry::offers(std::string_view domain,
                                                              std::string_view op_type) const {
  const auto found = offers_.find(registered_name(domain, op_type));
  if (found == offers_.end()) return {};
  return found->second;
}

std::vector<std::string> KernelRegistry::op_types(std::string_view domain) const {
  std::vector<std::string> names;
  for (const auto& [name, entries] : offers_) {
    if (name.domain == domain) names.push_back(name.op_type);
  }
  std::ranges::sort(names);
  return names;
}

void KernelRegistry::remove(std::string_view domain, std::string_view op_type) {
  offers_.erase(key_of(domain, op_type));
}

DynamicFn KernelRegistry::dynamic(std::string_view domain, std::string_view op_type) const {
  const auto found = dynamic_.find(registered_name(domain, op_type));
  return found == dynamic_.end() ? nullptr : found->second;
}

}  // namespace onnxgrad::opdef
