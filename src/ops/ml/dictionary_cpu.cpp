#include <algorithm>
#include <charconv>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/packed.h"
#include "ir/builder.h"
#include "onnxgrad/error.h"
#include "ops/kernel_support.h"

// DictVectorizer and CastMap (ai.onnx.ml 1): convert maps, which are inputs of a model, to tensors
// [1, n]. A map is packed as its keys followed by its values (runtime/packed_graph.h).

namespace onnxgrad::ops::dictionary_cpu {
namespace {

[[noreturn]] void fail(const DynamicCall& call, std::string what, std::string hint) {
  throw DataError({.what = std::move(what),
                   .where = {.node = call.node.name, .op_type = call.node.op_type},
                   .hint = std::move(hint)});
}

struct Map {
  Tensor keys;
  Tensor values;
};

Map map_at(const DynamicCall& call) {
  auto parts = base::unpack(call.inputs.at(0));
  const bool is_map = parts && parts->size() == 2 && parts->at(0).dims().rank() == 1 &&
                      parts->at(0).num_elements() == parts->at(1).num_elements();
  if (!is_map) fail(call, "these bytes are no map", "Give one value for each key.");
  return {.keys = parts->at(0), .values = parts->at(1)};
}

template <class T>
std::span<const T> elements(const Tensor& tensor) {
  if constexpr (std::is_same_v<T, std::string>) {
    return tensor.strings();
  } else {
    return tensor.data<T>();
  }
}

template <class T>
std::span<T> elements(Tensor& tensor) {
  if constexpr (std::is_same_v<T, std::string>) {
    return tensor.mutable_strings();
  } else {
    return tensor.mutable_data<T>();
  }
}

// Returns the value of each key of the vocabulary, in its order; zero (or "") for absent keys.
template <class Key>
Tensor vectorize(const Map& map, const std::vector<Key>& vocabulary) {
  std::unordered_map<Key, std::int64_t> places;
  const auto keys = elements<Key>(map.keys);
  for (std::size_t i = 0; i < keys.size(); ++i) places[keys[i]] = static_cast<std::int64_t>(i);
  const auto count = static_cast<std::int64_t>(vocabulary.size());
  Tensor row = Tensor::zeros(map.values.dtype(), {1, count});
  const auto take = [&]<class T>(T) {
    const auto from = elements<T>(map.values);
    const auto to = elements<T>(row);
    for (std::size_t i = 0; i < vocabulary.size(); ++i) {
      const auto found = places.find(vocabulary[i]);
      if (found != places.end()) to[i] = from[static_cast<std::size_t>(found->second)];
    }
  };
  switch (map.values.dtype()) {
    case DataType::kFloat32:
      take(float{});
      break;
    case DataType::kFloat64:
      take(double{});
      break;
    case DataType::kInt64:
      take(std::int64_t{});
      break;
    default:
      take(std::string{});
  }
  return row;
}

std::vector<Tensor> run_dict_vectorizer(const DynamicCall& call) {
  const Map map = map_at(call);
  const ir::AttributeValue* texts = call.node.find_attribute("string_vocabulary");
  const bool has_texts = map.keys.dtype() == DataType::kString;
  if (has_texts != (texts != nullptr)) {
    fail(call, "the keys of the map and of the vocabulary are of different types",
         "Export the model again.");
  }
  if (has_texts) return {vectorize(map, std::get<std::vector<std::string>>(*texts))};
  return {vectorize(map, call.node.ints_attribute("int64_vocabulary"))};
}

double number_of(const DynamicCall& call, const std::string& text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) {
    fail(call, "'" + text + "' is not a number", "Give strings that are numbers.");
  }
  return number;
}

std::string text_of(float number) {
  std::string text(32, '\0');
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), number);
  text.resize(static_cast<std::size_t>(end - text.data()));
  return text;
}

// Converts element `from` of `values` to element `to` of `row`.
void convert(const DynamicCall& call, const Tensor& values, std::size_t from, Tensor& row,
             std::size_t to) {
  const bool is_text = values.dtype() == DataType::kString;
  if (row.dtype() == DataType::kString) {
    row.mutable_strings()[to] =
        is_text ? values.strings()[from] : text_of(values.data<float>()[from]);
    return;
  }
  const double number = is_text ? number_of(call, values.strings()[from])
                                : static_cast<double>(values.data<float>()[from]);
  if (row.dtype() == DataType::kInt64) {
    row.mutable_data<std::int64_t>()[to] = static_cast<std::int64_t>(number);
  } else {
    row.mutable_data<float>()[to] = static_cast<float>(number);
  }
}

// DENSE: the values in the order of their keys. SPARSE: each value at the index given by its key,
// in a row of max_map elements.
std::vector<Tensor> run_cast_map(const DynamicCall& call) {
  const Map map = map_at(call);
  const auto keys = map.keys.data<std::int64_t>();
  std::vector<std::pair<std::int64_t, std::size_t>> order;
  for (std::size_t i = 0; i < keys.size(); ++i) order.emplace_back(keys[i], i);
  std::ranges::sort(order);
  const std::string to = call.node.string_attribute("cast_to", "TO_FLOAT");
  const DataType dtype = to == "TO_STRING"  ? DataType::kString
                         : to == "TO_INT64" ? DataType::kInt64
                                            : DataType::kFloat32;
  const bool is_sparse = call.node.string_attribute("map_form", "DENSE") == "SPARSE";
  const std::int64_t count = is_sparse
                                 ? std::max<std::int64_t>(call.node.int_attribute("max_map", 1), 0)
                                 : static_cast<std::int64_t>(order.size());
  Tensor row = Tensor::zeros(dtype, {1, count});
  for (std::size_t i = 0; i < order.size(); ++i) {
    const auto [key, place] = order[i];
    if (is_sparse && (key < 0 || key >= count)) {
      fail(call,
           "key " + std::to_string(key) + " of a map for " + std::to_string(count) + " elements",
           "Give keys from 0 to max_map - 1.");
    }
    convert(call, map.values, place, row, is_sparse ? static_cast<std::size_t>(key) : i);
  }
  return {std::move(row)};
}

}  // namespace

void register_dictionary_cpu(opdef::KernelRegistry& registry) {
  for (const std::string_view domain : {ir::kFusedDomain, std::string_view("ai.onnx.ml")}) {
    registry.add_dynamic(domain, "DictVectorizer", run_dict_vectorizer);
    registry.add_dynamic(domain, "CastMap", run_cast_map);
  }
}

}  // namespace onnxgrad::ops::dictionary_cpu
