#include "onnx/schemas.h"

#include <onnx/defs/data_type_utils.h>
#include <onnx/defs/shape_inference.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>

#include "onnx/removed_operators.h"
#include "onnxgrad/error.h"

namespace onnxgrad::onnx_io {
namespace {

// X: [C] or [N, C]. Y: the same with one axis more, as long as the longest row of tokens.
void infer_tokenizer(onnx::InferenceContext& context) {
  onnx::updateOutputElemType(context, 0, onnx::TensorProto::STRING);
  if (!onnx::hasInputShape(context, 0)) return;
  const onnx::TensorShapeProto& shape = onnx::getInputShape(context, 0);
  if (shape.dim_size() < 1 || shape.dim_size() > 2) {
    fail_shape_inference("texts of rank ", shape.dim_size(), ", expected [C] or [N, C]");
  }
  onnx::TensorShapeProto tokens = shape;
  tokens.add_dim();
  onnx::updateOutputShape(context, 0, tokens);
}

onnx::OpSchema make_tokenizer() {
  using Attribute = onnx::AttributeProto;
  onnx::OpSchema schema;
  schema.SetName("Tokenizer")
      .SetDomain("com.microsoft")
      .SinceVersion(1)
      .Attr("mark", "", Attribute::INT)
      .Attr("mincharnum", "", Attribute::INT)
      .Attr("pad_value", "", Attribute::STRING)
      .Attr("separators", "", Attribute::STRINGS, onnx::OPTIONAL_VALUE)
      .Attr("tokenexp", "", Attribute::STRING, onnx::OPTIONAL_VALUE)
      .Input(0, "X", "", "T")
      .Output(0, "Y", "", "T")
      .TypeConstraint("T", {"tensor(string)"}, "")
      .TypeAndShapeInferenceFunction(infer_tokenizer);
  return schema;
}

constexpr SchemaRow kContribRows[] = {{"com.microsoft", "Tokenizer", 1, make_tokenizer}};

// Schemas of operators of onnxruntime's domain com.microsoft that have kernels, so that their
// nodes are checked and their types inferred like those of ONNX's. All others become standard
// operators when a model is loaded (ops/contrib) and need none.
std::span<const SchemaRow> contrib_schema_table() { return kContribRows; }

constexpr std::string_view kTensorPrefix = "tensor(";

// ONNX's names of element types, in the order of TensorProto.DataType.
constexpr std::string_view kElementNames[] = {
    "undefined",      "float",    "uint8",        "int8",           "uint16",
    "int16",          "int32",    "int64",        "string",         "bool",
    "float16",        "double",   "uint32",       "uint64",         "complex64",
    "complex128",     "bfloat16", "float8e4m3fn", "float8e4m3fnuz", "float8e5m2",
    "float8e5m2fnuz", "uint4",    "int4",         "float4e2m1",     "float8e8m0",
    "uint2",          "int2"};

Parameter make_parameter(const onnx::OpSchema::FormalParameter& formal,
                         std::map<std::string, int>& constraints) {
  Parameter parameter{.name = formal.GetName()};
  for (const std::string* type : formal.GetTypes()) {
    const std::string_view text(*type);
    if (!text.starts_with(kTensorPrefix)) {
      parameter.takes_others = true;
      continue;
    }
    const std::string_view element =
        text.substr(kTensorPrefix.size(), text.size() - kTensorPrefix.size() - 1);
    const auto* found = std::ranges::find(kElementNames, element);
    if (found != std::end(kElementNames)) {
      parameter.tensors |= 1u << static_cast<unsigned>(found - std::begin(kElementNames));
    }
  }
  parameter.is_required = formal.GetOption() == onnx::OpSchema::Single;
  parameter.is_variadic = formal.GetOption() == onnx::OpSchema::Variadic;
  if (formal.GetIsHomogeneous()) {
    const int next = static_cast<int>(constraints.size());
    parameter.constraint = constraints.emplace(formal.GetTypeStr(), next).first->second;
  }
  return parameter;
}

std::string_view schema_domain(std::string_view domain) {
  return domain == "ai.onnx" ? "" : domain;
}

// All versions of one operator, oldest first, and their schemas as far as requested.
struct Versions {
  std::vector<const SchemaRow*> rows;
  std::vector<std::unique_ptr<const Schema>> schemas;
};

// A cache of facts about the library; what it returns never changes.
class Catalogue {
 public:
  Catalogue() {
    add(schema_table());
    add(contrib_schema_table());
    add(removed_schema_table());
    for (auto& [domain, operators] : by_domain_) {
      for (auto& [name, versions] : operators) {
        std::ranges::sort(versions.rows, {}, &SchemaRow::since_version);
        versions.schemas.resize(versions.rows.size());
      }
    }
  }

  const SchemaRow* row(std::string_view domain, std::string_view op_type, std::int64_t opset) {
    Versions* versions = find(domain, op_type);
    if (versions == nullptr) return nullptr;
    const std::size_t i = index_at(*versions, opset);
    return i == 0 ? nullptr : versions->rows[i - 1];
  }

  const Schema* schema(std::string_view domain, std::string_view op_type, std::int64_t opset) {
    Versions* versions = find(domain, op_type);
    if (versions == nullptr) return nullptr;
    const std::size_t i = index_at(*versions, opset);
    if (i == 0) return nullptr;
    const std::scoped_lock lock(mutex_);
    std::unique_ptr<const Schema>& schema = versions->schemas[i - 1];
    if (schema == nullptr) schema = std::make_unique<Schema>(versions->rows[i - 1]->make());
    return schema->op().deprecated() ? nullptr : schema.get();
  }

  int newest(std::string_view domain) const {
    const auto found = newest_.find(domain);
    return found == newest_.end() ? 0 : found->second;
  }

  std::vector<std::string> names(std::string_view domain) const {
    std::vector<std::string> names;
    const auto found = by_domain_.find(domain);
    if (found == by_domain_.end()) return names;
    for (const auto& [name, versions] : found->second) names.emplace_back(name);
    return names;
  }

 private:
  void add(std::span<const SchemaRow> rows) {
    for (const SchemaRow& row : rows) {
      by_domain_[row.domain][row.op_type].rows.push_back(&row);
      int& newest = newest_[row.domain];
      newest = std::max(newest, row.since_version);
    }
  }

  Versions* find(std::string_view domain, std::string_view op_type) {
    const auto operators = by_domain_.find(domain);
    if (operators == by_domain_.end()) return nullptr;
    const auto versions = operators->second.find(op_type);
    return versions == operators->second.end() ? nullptr : &versions->second;
  }

  // One past the newest version that is not above `opset`; 0 if all are.
  static std::size_t index_at(const Versions& versions, std::int64_t opset) {
    const auto after = std::ranges::upper_bound(versions.rows, opset, {}, [](const SchemaRow* row) {
      return std::int64_t{row->since_version};
    });
    return static_cast<std::size_t>(after - versions.rows.begin());
  }

  std::mutex mutex_;
  std::map<std::string_view, std::unordered_map<std::string_view, Versions>> by_domain_;
  std::map<std::string_view, int> newest_;
};

Catalogue& catalogue() {
  static auto* const instance = new Catalogue;  // never destroyed: plans may outlive main()
  return *instance;
}

}  // namespace

Schema::Schema(onnx::OpSchema op) : op_(std::move(op)) {
  try {
    op_.Finalize();
  } catch (const std::exception& error) {
    throw InternalError("schema of " + op_.Name() + ": " + error.what());
  }
  std::map<std::string, int> constraints;
  for (const auto& formal : op_.inputs()) inputs_.push_back(make_parameter(formal, constraints));
  for (const auto& formal : op_.outputs()) outputs_.push_back(make_parameter(formal, constraints));
  num_constraints_ = constraints.size();
  if (op_.has_type_and_shape_inference_function()) infer_ = op_.GetTypeAndShapeInferenceFunction();
  if (op_.has_data_propagation_function()) propagate_ = op_.GetDataPropagationFunction();
}

const Parameter* Schema::at(const std::vector<Parameter>& parameters, std::size_t i) {
  if (i < parameters.size()) return &parameters[i];
  return !parameters.empty() && parameters.back().is_variadic ? &parameters.back() : nullptr;
}

const Schema* find_schema(std::string_view domain, std::string_view op_type, std::int64_t opset) {
  return catalogue().schema(schema_domain(domain), op_type, opset);
}

int since_version(std::string_view domain, std::string_view op_type, std::int64_t opset) {
  const SchemaRow* row = catalogue().row(schema_domain(domain), op_type, opset);
  return row == nullptr ? 0 : row->since_version;
}

int newest_opset(std::string_view domain) { return catalogue().newest(schema_domain(domain)); }

std::vector<std::string> schema_names(std::string_view domain) {
  return catalogue().names(schema_domain(domain));
}

}  // namespace onnxgrad::onnx_io
