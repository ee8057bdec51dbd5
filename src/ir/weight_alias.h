#ifndef ONNXGRAD_IR_WEIGHT_ALIAS_H_
#define ONNXGRAD_IR_WEIGHT_ALIAS_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace onnxgrad::ir {

/// Names of a weight in the program that the file was exported from, if the exporter gave it
/// another one ("val_92" for the transposed matrix of a linear layer).
struct WeightAlias {
  /// Names in the program; messages show the first. Weights of an LSTM, GRU or RNN hold several
  /// parameters, one after another along their rows: one for each direction, and in a bias one for
  /// input and one for state.
  std::vector<std::string> names = {};
  /// The parameter behind names.front(): two weights may come from one.
  std::string parameter = {};
  bool is_certain = false;     ///< the file says which parameter it is
  bool is_transposed = false;  ///< the program's is [out, in], stored as [in, out]
  std::string cell = {};       ///< "LSTM", "GRU" or "RNN": the order of gates differs
};

/// The entry of Value::metadata that has it, in working copies; no file is written with it.
inline constexpr std::string_view kAliasEntry = "onnxgrad.alias";

std::optional<WeightAlias> find_alias(const Value& weight);
void set_alias(Value& weight, const WeightAlias& alias);
void remove_alias(Value& weight);

}  // namespace onnxgrad::ir

#endif  // ONNXGRAD_IR_WEIGHT_ALIAS_H_
