#ifndef ONNXGRAD_COMPAT_ARTIFACT_MODELS_H_
#define ONNXGRAD_COMPAT_ARTIFACT_MODELS_H_

// Evaluation models of artifacts as bytes: parameters, which are inputs there, become initializers,
// and parts are cut out. Works on protobuf's wire format, of which only these fields matter:
//   model: graph 7; graph: node 1, initializer 5, input 11, output 12, value info 13
//   node: input 1, output 2, attribute 5; attribute: graph 6, graphs 11
//   tensor: dims 1, type 2, name 8, bytes 9; value info: name 1; initializer: name 8

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "onnxgrad/error.h"
#include "onnxgrad/model.h"

namespace onnxgrad::compat {

/// `model`, with these initializers in place of inputs of the same names.
std::string with_initializers(std::string_view model, const NamedTensors& tensors);
/// The part of `model` that computes these values, which become its outputs, with the inputs that
/// they need. Throws: ModelError (a value that no node computes).
std::string computing(std::string_view model, const std::vector<std::string>& outputs);

/// `model`, with these declarations of its outputs.
std::string with_outputs(std::string_view model, const std::vector<ValueInfo>& outputs);

namespace detail {

struct WireField {
  std::uint64_t number;
  std::string_view whole;  // with its key
  std::string_view body;   // of a field with a length
};

inline std::optional<std::uint64_t> take_varint(std::string_view& bytes) {
  std::uint64_t value = 0;
  for (unsigned shift = 0; shift < 64 && !bytes.empty(); shift += 7) {
    const auto byte = static_cast<std::uint8_t>(bytes.front());
    bytes.remove_prefix(1);
    value |= static_cast<std::uint64_t>(byte & 0x7fU) << shift;
    if (byte < 0x80) return value;
  }
  return std::nullopt;
}

inline std::vector<WireField> wire_fields(std::string_view message) {
  std::vector<WireField> fields;
  std::string_view rest = message;
  while (!rest.empty()) {
    const std::string_view start = rest;
    const auto key = take_varint(rest);
    std::optional<std::uint64_t> size = 0;
    const std::uint64_t kind = key.value_or(7) & 7U;
    if (kind == 0) {
      if (!take_varint(rest)) size = std::nullopt;
    } else if (kind == 2) {
      size = take_varint(rest);
    } else if (kind == 1 || kind == 5) {
      size = kind == 1 ? 8 : 4;
    } else {
      size = std::nullopt;
    }
    if (!size || *size > rest.size()) {
      throw ModelError(
          {.what = "this is not an ONNX model", .hint = "Give a file of generate_artifacts."});
    }
    const std::string_view body = rest.substr(0, *size);
    rest.remove_prefix(*size);
    fields.push_back({*key >> 3U, start.substr(0, start.size() - rest.size()), body});
  }
  return fields;
}

inline std::string varint(std::uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7U) bytes += static_cast<char>((value & 0x7fU) | 0x80U);
  return bytes + static_cast<char>(value);
}

inline std::string number_field(std::uint64_t number, std::uint64_t value) {
  return varint(number << 3U) + varint(value);
}

inline std::string bytes_field(std::uint64_t number, std::string_view body) {
  return varint(number << 3U | 2U) + varint(body.size()) + std::string(body);
}

inline std::string first_text(std::string_view message, std::uint64_t number) {
  for (const WireField& field : wire_fields(message)) {
    if (field.number == number) return std::string(field.body);
  }
  return {};
}

// The model with its graph replaced by edit(graph).
template <class Edit>
std::string with_graph(std::string_view model, const Edit& edit) {
  std::string result;
  std::string graph;
  for (const WireField& field : wire_fields(model)) {
    (field.number == 7 ? graph : result) += field.number == 7 ? field.body : field.whole;
  }
  return result + bytes_field(7, edit(graph));
}

// Names that a node reads, with those that its subgraphs read.
inline void add_reads(std::string_view node, std::set<std::string>& names) {
  for (const WireField& field : wire_fields(node)) {
    if (field.number == 1) names.emplace(field.body);
    if (field.number != 5) continue;
    for (const WireField& part : wire_fields(field.body)) {
      if (part.number != 6 && part.number != 11) continue;
      for (const WireField& inner : wire_fields(part.body)) {
        if (inner.number == 1) add_reads(inner.body, names);
        if (inner.number == 12) names.insert(first_text(inner.body, 1));
      }
    }
  }
}

}  // namespace detail

inline std::string with_initializers(std::string_view model, const NamedTensors& tensors) {
  std::set<std::string> names;
  std::string added;
  for (const auto& [name, tensor] : tensors) {
    names.insert(name);
    std::string message;
    for (const std::int64_t dim : tensor.dims()) {
      message += detail::number_field(1, static_cast<std::uint64_t>(dim));
    }
    message += detail::number_field(2, static_cast<std::uint64_t>(tensor.dtype()));
    message += detail::bytes_field(8, name);
    const auto bytes = static_cast<std::size_t>(tensor.size_bytes());
    message += detail::bytes_field(9, {reinterpret_cast<const char*>(tensor.raw()), bytes});
    added += detail::bytes_field(5, message);
  }
  return detail::with_graph(model, [&](std::string_view graph) {
    std::string result;
    for (const detail::WireField& field : detail::wire_fields(graph)) {
      const bool is_replaced =
          (field.number == 11 && names.contains(detail::first_text(field.body, 1))) ||
          (field.number == 5 && names.contains(detail::first_text(field.body, 8)));
      if (!is_replaced) result += field.whole;
    }
    return result + added;
  });
}

inline std::string with_outputs(std::string_view model, const std::vector<ValueInfo>& outputs) {
  return detail::with_graph(model, [&](std::string_view graph) {
    std::string result;
    for (const detail::WireField& field : detail::wire_fields(graph)) {
      if (field.number != 12) result += field.whole;
    }
    for (const ValueInfo& output : outputs) {
      std::string type = detail::number_field(1, static_cast<std::uint64_t>(output.dtype));
      std::string shape;
      for (const Dimension& dim : output.shape.value_or(std::vector<Dimension>())) {
        shape += detail::bytes_field(
            1, dim.is_fixed()       ? detail::number_field(1, static_cast<std::uint64_t>(dim.value))
               : dim.symbol.empty() ? std::string()
                                    : detail::bytes_field(2, dim.symbol));
      }
      if (output.shape) type += detail::bytes_field(2, shape);
      const std::string info = detail::bytes_field(1, output.name) +
                               detail::bytes_field(2, detail::bytes_field(1, type));
      result += detail::bytes_field(12, info);
    }
    return result;
  });
}

inline std::string computing(std::string_view model, const std::vector<std::string>& outputs) {
  return detail::with_graph(model, [&](std::string_view graph) {
    const std::vector<detail::WireField> fields = detail::wire_fields(graph);
    std::set<std::string> needed(outputs.begin(), outputs.end());
    std::set<std::string> made;
    std::vector<std::string> nodes;
    for (auto field = fields.rbegin(); field != fields.rend(); ++field) {
      if (field->number != 1) continue;
      bool is_needed = false;
      for (const detail::WireField& part : detail::wire_fields(field->body)) {
        if (part.number != 2 || !needed.contains(std::string(part.body))) continue;
        is_needed = true;
        made.emplace(part.body);
      }
      if (!is_needed) continue;
      detail::add_reads(field->body, needed);
      nodes.emplace_back(field->whole);
    }
    std::string result;
    for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) result += *node;
    std::vector<std::string> declared(outputs.size());
    for (const detail::WireField& field : fields) {
      const std::uint64_t number = field.number;
      const std::string name = number == 5                    ? detail::first_text(field.body, 8)
                               : number >= 11 && number <= 13 ? detail::first_text(field.body, 1)
                                                              : std::string();
      if (number == 12 || number == 13) {
        for (std::size_t i = 0; i < outputs.size(); ++i) {
          if (outputs[i] == name) declared[i] = detail::bytes_field(12, field.body);
        }
      }
      const bool is_read = (number == 5 || number == 11) && needed.contains(name);
      const bool is_other = number != 1 && number != 5 && !(number >= 11 && number <= 13);
      if (is_read || is_other) result += field.whole;
    }
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (!made.contains(outputs[i])) {
        throw ModelError({.what = "'" + outputs[i] + "' is not an output of the model",
                          .where = {.value = outputs[i]},
                          .hint = "Give the names of outputs of the original model."});
      }
      const std::string untyped = detail::bytes_field(12, detail::bytes_field(1, outputs[i]));
      result += declared[i].empty() ? untyped : declared[i];
    }
    return result;
  });
}

}  // namespace onnxgrad::compat

#endif  // ONNXGRAD_COMPAT_ARTIFACT_MODELS_H_
