// What is trained and what is not, in words.
#include "train/weights_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/check.h"
#include "train/engine.h"
#include "train/patterns.h"
#include "train/weights.h"

namespace onnxgrad::train {
namespace {

constexpr std::size_t kMostNames = 4;

using Reasons = std::vector<std::pair<std::string, std::vector<std::string>>>;

void add_reason(Reasons& reasons, const std::string& reason, const std::string& name) {
  auto known = std::ranges::find(reasons, reason, &Reasons::value_type::first);
  if (known == reasons.end()) known = reasons.insert(known, {reason, {}});
  known->second.push_back(name);
}

bool is_matched(const std::vector<std::string>& patterns, const std::string& name) {
  return std::ranges::any_of(patterns,
                             [&](const std::string& one) { return glob_match(one, name); });
}

}  // namespace

std::string short_list(std::span<const std::string> names) {
  std::string text;
  const std::size_t shown = names.size() <= kMostNames + 1 ? names.size() : kMostNames;
  for (std::size_t i = 0; i < shown; ++i) text += (i > 0 ? ", '" : "'") + names[i] + "'";
  if (shown < names.size()) text += fmt::format(" and {} more", names.size() - shown);
  return text;
}

std::string separation_line(std::span<const SeparatedWeight> separated) {
  std::string text;
  std::size_t shown = 0;
  for (const SeparatedWeight& weight : separated) {
    if (shown++ == kMostNames) break;
    text += fmt::format("{}'{}' as {}", text.empty() ? "" : "; ", weight.name,
                        short_list(weight.parts));
  }
  if (text.empty()) return text;
  if (separated.size() > kMostNames) {
    text += fmt::format("; and {} more", separated.size() - kMostNames);
  }
  return "\ntrained separately, since only equal values made them one in the file: " +
         base::printable(text);
}

std::string weights_line(const ir::Model& working, const StepGraph& step,
                         const TrainingOptions& options) {
  std::unordered_set<std::string> trained;
  std::unordered_set<std::string> statistics;
  for (const WeightInfo& weight : step.weights) trained.insert(weight.name);
  for (const WeightInfo& weight : step.statistics) statistics.insert(weight.name);
  std::unordered_set<std::string> held;
  for (const WeightInfo& weight : step.held) held.insert(weight.name);

  std::size_t total = 0;
  Reasons reasons;
  for (const Weight& weight : find_weights(working, builtin_engine().ops)) {
    const WeightInfo info = weight_info(weight);
    if (trained.contains(info.name)) {
      ++total;
      continue;
    }
    if ((!is_floating(info.dtype) && !is_quantized(info)) || is_plain_number(info) ||
        is_of_definition(weight))
      continue;
    ++total;
    const bool is_wanted = info.trainable || is_matched(options.trainable, info.name);
    if (statistics.contains(info.name)) {
      add_reason(reasons, "running statistics", info.name);
    } else if (held.contains(info.name) || (is_wanted && is_matched(options.frozen, info.name))) {
      add_reason(reasons, "frozen", info.name);
    } else if (!info.trainable) {
      add_reason(reasons, info.reason, info.name);
    } else if (!options.trainable.empty()) {
      add_reason(reasons, "not named", info.name);
    } else {
      add_reason(reasons, "without influence on the loss", info.name);
    }
  }
  std::string text =
      fmt::format("trains {} of {} weight{}", trained.size(), total, total == 1 ? "" : "s");
  for (std::size_t i = 0; i < reasons.size(); ++i) {
    text += fmt::format("{}{} ({})", i == 0 ? "; not trained: " : "; ",
                        short_list(reasons[i].second), reasons[i].first);
  }
  return base::printable(text);
}

}  // namespace onnxgrad::train
