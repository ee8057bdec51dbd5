#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "onnxgrad/report.h"
#include "train/weights/weights.h"

// The text form of a report: Python and the command line print it too.

namespace onnxgrad {
namespace {

struct Column {
  std::string_view title;
  bool is_number = false;
};

// Cells are never truncated. Those with more characters than this do not widen their column, but
// move what follows in their own line.
constexpr std::size_t kWidest = 60;

using Row = std::vector<std::string>;

// Continuation bytes of UTF-8 are not counted as characters.
bool begins_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; }

std::size_t count_characters(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(text, begins_character));
}

std::string table_text(std::span<const Column> columns, const std::vector<Row>& rows) {
  std::vector<Row> cells(rows.size() + 1);
  std::vector<std::size_t> widths(columns.size(), 0);
  for (std::size_t r = 0; r < cells.size(); ++r) {
    for (std::size_t c = 0; c < columns.size(); ++c) {
      cells[r].push_back(base::printable(r == 0 ? columns[c].title : rows[r - 1][c]));
      const std::size_t width = count_characters(cells[r][c]);
      if (width <= kWidest) widths[c] = std::max(widths[c], width);
    }
  }
  std::string text;
  for (const Row& row : cells) {
    std::string line;
    for (std::size_t c = 0; c < columns.size(); ++c) {
      const std::size_t width = count_characters(row[c]);
      const std::string blanks(widths[c] - std::min(width, widths[c]), ' ');
      line += c == 0 ? "" : "  ";
      line += columns[c].is_number ? blanks + row[c] : row[c] + blanks;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  }
  return text;
}

std::string yes_or_no(bool value) { return value ? "yes" : "no"; }

// A human-readable number of bytes.
std::string size_text(std::int64_t num_bytes) {
  constexpr std::array<std::string_view, 3> kUnits{"KiB", "MiB", "GiB"};
  if (num_bytes < 1024) return fmt::format("{} B", num_bytes);
  double size = static_cast<double>(num_bytes) / 1024;
  std::size_t unit = 0;
  for (; size >= 1024 && unit + 1 < kUnits.size(); ++unit) size /= 1024;
  return fmt::format("{:.1f} {}", size, kUnits[unit]);
}

// A human-readable large number.
std::string count_text(double number) {
  constexpr std::array<std::string_view, 4> kUnits{"k", "M", "G", "T"};
  number = std::round(number);
  if (number < 1e5) return fmt::format("{:.0f}", number);
  std::size_t unit = 0;
  double size = number / 1000;
  for (; size >= 1000 && unit + 1 < kUnits.size(); ++unit) size /= 1000;
  return fmt::format("{:.3g} {}", size, kUnits[unit]);
}

std::string operators_text(const Report& report) {
  constexpr std::array<Column, 4> kColumns{{{"operator"}, {"count", true}, {"runs"}, {"gradient"}}};
  std::vector<Row> rows;
  for (const OperatorUse& use : report.operators) {
    rows.push_back({use.domain.empty() ? use.op_type : use.domain + "." + use.op_type,
                    std::to_string(use.count), yes_or_no(use.runs), yes_or_no(use.has_gradient)});
  }
  return table_text(kColumns, rows);
}

// "MatMul /fc/MatMul", or for several readers "MatMul and 42 more".
std::string reader_text(const WeightInfo& weight, std::int64_t readers) {
  if (readers > 1) return fmt::format("{} and {} more", weight.op_type, readers - 1);
  return weight.op_type + (weight.node.empty() ? "" : " " + weight.node);
}

// "val_92 (fc.weight)": the names that options take.
std::string weight_text(const WeightInfo& weight) {
  if (weight.aliases.empty()) return weight.name;
  return fmt::format("{} ({})", weight.name, fmt::join(weight.aliases, ", "));
}

// The weights that trainable="head" selects, if others are trained too.
std::string head_text(const Report& report) {
  std::vector<std::string> head;
  bool has_others = false;
  for (const WeightInfo& weight : report.weights) {
    if (!weight.trainable) continue;
    if (weight.level == 0) head.push_back("'" + weight.name + "'");
    has_others = has_others || weight.level != 0;
  }
  if (head.empty() || !has_others) return "";
  return base::printable(fmt::format("head: {}", fmt::join(head, ", "))) + "\n";
}

std::string weights_text(const Report& report) {
  constexpr std::array<Column, 7> kColumns{{{"weight"},
                                            {"read by"},
                                            {"dtype"},
                                            {"shape"},
                                            {"parameters", true},
                                            {"FLOPs", true},
                                            {"trained"}}};
  std::vector<Row> rows;
  std::int64_t num_bytes = 0;
  std::int64_t quantized = 0;
  std::int64_t quantized_bytes = 0;
  double flops = 0;
  for (std::size_t i = 0; i < report.weights.size(); ++i) {
    const WeightInfo& weight = report.weights[i];
    const double weight_flops = i < report.weight_flops.size() ? report.weight_flops[i] : 0;
    flops += weight_flops;
    if (train::is_quantized(weight)) {
      quantized += weight.dims.num_elements();
      quantized_bytes += weight.dims.size_bytes(weight.dtype);
    }
    if (!is_floating(weight.dtype)) continue;
    num_bytes += weight.dims.size_bytes(weight.dtype);
    const std::int64_t readers = i < report.weight_readers.size() ? report.weight_readers[i] : 0;
    rows.push_back({weight_text(weight), reader_text(weight, readers),
                    std::string(dtype_name(weight.dtype)), weight.dims.to_string(),
                    std::to_string(weight.dims.num_elements()), count_text(weight_flops),
                    yes_or_no(weight.trainable)});
  }
  const std::string integers =
      quantized == 0 ? ""
                     : fmt::format("; {} quantized ({})", quantized, size_text(quantized_bytes));
  const std::string totals = fmt::format(
      "{} parameters ({}): {} trained, {} frozen{}; {} FLOPs per row in a forward pass\n",
      report.num_parameters, size_text(num_bytes), report.num_trainable,
      report.num_parameters - report.num_trainable, integers, count_text(flops));
  return table_text(kColumns, rows) + totals;
}

// Lists the weights that are not trained, with reasons and full names, as trainable= takes them.
std::string reasons_text(const Report& report) {
  std::vector<std::pair<std::string, std::string>> reasons;
  for (const WeightInfo& weight : report.weights) {
    if (weight.trainable || !(is_floating(weight.dtype) || train::is_quantized(weight))) continue;
    auto known = std::ranges::find(reasons, weight.reason, &decltype(reasons)::value_type::first);
    if (known == reasons.end()) known = reasons.insert(known, {weight.reason, ""});
    known->second += (known->second.empty() ? "'" : ", '") + weight.name + "'";
  }
  std::string text;
  std::vector<std::string> rounded;
  for (const WeightInfo& weight : report.weights) {
    if (weight.trainable && train::is_quantized(weight)) rounded.push_back(weight.name);
  }
  if (!rounded.empty()) {
    text = base::printable(
               fmt::format("trained as rounded numbers: '{}'", fmt::join(rounded, "', '"))) +
           "\n";
  }
  for (const auto& [reason, names] : reasons) {
    text += base::printable(fmt::format("not trained: {} ({})", names, reason)) + "\n";
  }
  for (const SeparatedWeight& weight : report.separated) {
    text += base::printable(fmt::format("trained separately: '{}' as '{}'", weight.name,
                                        fmt::join(weight.parts, "', '"))) +
            "\n";
  }
  for (const std::string& one : report.tied) text += "trained as one: " + one + "\n";
  return text + head_text(report);
}

}  // namespace

std::string Report::to_text() const {
  std::string text;
  const auto add_line = [&text](const std::string& line) { text += base::printable(line) + "\n"; };
  add_line(fmt::format("{}, opset {}, IR version {}{}", file.empty() ? "model" : file, opset,
                       ir_version, producer.empty() ? "" : ", produced by " + producer));
  for (const ValueInfo& input : inputs) {
    add_line(fmt::format("input  {}: {}", input.name, input.type));
  }
  for (const ValueInfo& output : outputs) {
    add_line(fmt::format("output {}: {}", output.name, output.type));
  }
  text += "\n" + operators_text(*this) + "\n" + weights_text(*this);
  text += "\n" + reasons_text(*this);
  add_line(loss_line.empty() ? "no loss: " + loss_problem : loss_line);
  for (const MissingGradientInfo& missing : missing_gradients) {
    add_line(fmt::format("no gradient: {} node '{}', input {}: {}", missing.op_type, missing.node,
                         missing.input, missing.reason));
  }
  return text + verdict + "\n";
}

}  // namespace onnxgrad
