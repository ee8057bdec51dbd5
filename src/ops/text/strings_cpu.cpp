#include <locale.h>  // NOLINT: newlocale, which <clocale> lacks
#include <wctype.h>  // NOLINT: towlower_l

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_set>
#include <vector>

#include "onnxgrad/error.h"
#include "opdef/kernel.h"
#include "ops/kernel_support.h"
#include "ops/text/utf8.h"

namespace onnxgrad::ops::strings_cpu {
namespace {

// Calls f(i, j) with the indices into a and b for each element of their broadcast shape, in order.
template <class F>
void visit_broadcast(const Dims& a, const Dims& b, const Dims& full, F&& f) {
  const std::size_t rank = full.rank();
  const auto steps = [&](const Dims& dims) {
    std::vector<std::int64_t> result(rank, 0);
    const std::vector<std::int64_t> strides = dims.strides();
    for (std::size_t i = 0; i < dims.rank(); ++i) {
      if (dims[i] != 1) result[rank - dims.rank() + i] = strides[i];
    }
    return result;
  };
  const auto step_a = steps(a);
  const auto step_b = steps(b);
  std::vector<std::int64_t> position(rank, 0);
  std::int64_t i = 0;
  std::int64_t j = 0;
  for (std::int64_t n = full.num_elements(); n > 0; --n) {
    f(static_cast<std::size_t>(i), static_cast<std::size_t>(j));
    for (std::size_t axis = rank; axis-- > 0;) {
      i += step_a[axis];
      j += step_b[axis];
      if (++position[axis] < full[axis]) break;
      i -= step_a[axis] * full[axis];
      j -= step_b[axis] * full[axis];
      position[axis] = 0;
    }
  }
}

std::vector<Tensor> run_concat(const DynamicCall& call) {
  const Tensor& a = call.inputs.at(0);
  const Tensor& b = call.inputs.at(1);
  const Dims full = broadcast_dims(a.dims(), b.dims());
  const auto left = a.strings();
  const auto right = b.strings();
  std::vector<std::string> texts;
  visit_broadcast(a.dims(), b.dims(), full,
                  [&](std::size_t i, std::size_t j) { texts.push_back(left[i] + right[j]); });
  return {Tensor::from_strings(std::move(texts), full)};
}

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

// Splits at runs of whitespace: no part is empty at the ends; the rest after the last split is kept
// as it is.
std::vector<std::string> split_at_space(std::string_view text, std::int64_t most) {
  std::vector<std::string> parts;
  std::size_t at = 0;
  while (true) {
    while (at < text.size() && is_space(text[at])) ++at;
    if (at == text.size()) return parts;
    if (static_cast<std::int64_t>(parts.size()) == most) {
      parts.emplace_back(text.substr(at));
      return parts;
    }
    std::size_t end = at;
    while (end < text.size() && !is_space(text[end])) ++end;
    parts.emplace_back(text.substr(at, end - at));
    at = end;
  }
}

std::vector<std::string> split_at(std::string_view text, std::string_view delimiter,
                                  std::int64_t most) {
  std::vector<std::string> parts;
  std::size_t at = 0;
  while (static_cast<std::int64_t>(parts.size()) < most) {
    const std::size_t end = text.find(delimiter, at);
    if (end == std::string_view::npos) break;
    parts.emplace_back(text.substr(at, end - at));
    at = end + delimiter.size();
  }
  parts.emplace_back(text.substr(at));
  return parts;
}

// StringSplit: adds an axis with the parts of each string, padded with empty strings.
std::vector<Tensor> run_split(const DynamicCall& call) {
  const Tensor& x = call.inputs.at(0);
  const std::string delimiter = call.node.string_attribute("delimiter", "");
  const std::int64_t most = call.node.find_attribute("maxsplit") == nullptr
                                ? std::numeric_limits<std::int64_t>::max()
                                : call.node.int_attribute("maxsplit");
  std::vector<std::vector<std::string>> parts;
  std::vector<std::int64_t> counts;
  std::int64_t longest = 0;
  for (const std::string& text : x.strings()) {
    parts.push_back(delimiter.empty() ? split_at_space(text, most)
                                      : split_at(text, delimiter, most));
    counts.push_back(static_cast<std::int64_t>(parts.back().size()));
    longest = std::max(longest, counts.back());
  }
  std::vector<std::string> texts;
  for (std::vector<std::string>& row : parts) {
    row.resize(static_cast<std::size_t>(longest));
    std::ranges::move(row, std::back_inserter(texts));
  }
  std::vector<std::int64_t> dims(x.dims().begin(), x.dims().end());
  dims.push_back(longest);
  return {Tensor::from_strings(std::move(texts), Dims(dims)), Tensor::from(counts, x.dims())};
}

// Changes the case of characters as a locale does; if it is not installed, of ASCII letters only.
class CaseChange {
 public:
  explicit CaseChange(const std::string& name) {
    for (const char* tried : {name.c_str(), "C.UTF-8", "en_US.UTF-8"}) {
      if (*tried != '\0' && !locale_) locale_.reset(newlocale(LC_CTYPE_MASK, tried, nullptr));
    }
  }

  std::string apply(const std::string& text, bool to_upper) const {
    std::u32string characters = decode_utf8(text);
    for (char32_t& c : characters) {
      if (locale_ != nullptr) {
        const auto wide = static_cast<wint_t>(c);
        c = static_cast<char32_t>(to_upper ? towupper_l(wide, locale_.get())
                                           : towlower_l(wide, locale_.get()));
      } else if (to_upper ? (c >= U'a' && c <= U'z') : (c >= U'A' && c <= U'Z')) {
        c ^= 0x20U;
      }
    }
    return encode_utf8(characters);
  }

 private:
  struct Free {
    void operator()(locale_t locale) const { freelocale(locale); }
  };
  std::unique_ptr<std::remove_pointer_t<locale_t>, Free> locale_;
};

// StringNormalizer: removes stop words from x [C] or [1, C] and changes the case of the others; one
// empty string if none is left, no string of no strings.
std::vector<Tensor> run_normalizer(const DynamicCall& call) {
  const ir::Node& node = call.node;
  const Tensor& x = call.inputs.at(0);
  const std::size_t rank = x.dims().rank();
  if (rank == 0 || rank > 2 || (rank == 2 && x.dims()[0] != 1)) {
    throw ShapeError(
        {.what = "strings of shape " + x.dims().to_string() + ", expected [C] or [1, C]",
         .where = {.node = node.name, .op_type = node.op_type},
         .hint = "Give one row of strings."});
  }
  const CaseChange change(
      node.find_attribute("locale") == nullptr ? "" : node.string_attribute("locale"));
  const std::string action = node.string_attribute("case_change_action");
  const bool is_sensitive = node.int_attribute("is_case_sensitive") != 0;
  const auto key = [&](const std::string& text) {
    return is_sensitive ? text : change.apply(text, /*to_upper=*/false);
  };
  std::unordered_set<std::string> stopwords;
  if (const ir::AttributeValue* words = node.find_attribute("stopwords")) {
    for (const std::string& word : std::get<std::vector<std::string>>(*words)) {
      stopwords.insert(key(word));
    }
  }
  std::vector<std::string> kept;
  for (const std::string& text : x.strings()) {
    if (stopwords.contains(key(text))) continue;
    kept.push_back(action == "NONE" ? text : change.apply(text, action == "UPPER"));
  }
  if (kept.empty() && !x.strings().empty()) kept.emplace_back();
  const auto count = static_cast<std::int64_t>(kept.size());
  return {Tensor::from_strings(std::move(kept), rank == 1 ? Dims{count} : Dims{1, count})};
}

// Equal for strings; for other types it is an element-wise expression.
struct EqualData {
  Dims a;
  Dims b;
  Dims full;
};

void run_equal(const EqualData& equal, KernelArgs args) {
  const auto* a = args.at<std::string>(0);
  const auto* b = args.at<std::string>(1);
  auto* y = args.at<bool>(2);
  visit_broadcast(equal.a, equal.b, equal.full,
                  [&](std::size_t i, std::size_t j) { *y++ = a[i] == b[j]; });
}

KernelOffer offer_equal(const KernelRequest& request) {
  const DataType dtype = request.inputs[0].dtype;
  if (dtype != DataType::kString) return decline_dtype(request, dtype);
  return prepared<run_equal>(EqualData{.a = request.inputs[0].dims,
                                       .b = request.inputs[1].dims,
                                       .full = request.outputs[0].dims},
                             "texts");
}

}  // namespace

void register_strings_cpu(opdef::KernelRegistry& registry) {
  registry.add_dynamic("", "StringConcat", run_concat);
  registry.add_dynamic("", "StringSplit", run_split);
  registry.add_dynamic("", "StringNormalizer", run_normalizer);
  registry.add("", "Equal", 0, offer_equal);
}

}  // namespace onnxgrad::ops::strings_cpu
