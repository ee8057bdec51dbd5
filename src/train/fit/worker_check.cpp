#include "train/fit/worker_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string_view>

#include "base/checksum.h"
#include "onnxgrad/option_error.h"
#include "onnxgrad/version.h"
#include "train/fit/class_weigher.h"
#include "train/fit/options.h"
#include "train/graphs/graph_description.h"
#include "train/optimizers/optimizers.h"

namespace onnxgrad::train {
namespace {

std::string text_of_number(std::optional<std::int64_t> number) {
  return number ? std::to_string(*number) : "not known";
}

// Sums of gradients within an accumulated update are each worker's own.
std::string checksum_of_state(const NamedTensors& state, bool is_weight,
                              const std::vector<WeightInfo>& weights) {
  base::Checksum checksum;
  for (const NamedTensor& entry : state) {
    const bool is_named =
        std::ranges::find(weights, entry.name, &WeightInfo::name) != weights.end();
    if (is_named != is_weight || is_accumulated(entry.name)) continue;
    checksum.update(entry.name);
    checksum.update(
        std::span(entry.tensor.raw(), static_cast<std::size_t>(entry.tensor.size_bytes())));
  }
  return checksum.hex();
}

std::string without_line_ends(std::string text) {
  std::ranges::replace(text, '\n', ' ');
  return text;
}

// Splits off the first line.
std::string_view next_line(std::string_view& text) {
  const std::size_t end = std::min(text.find('\n'), text.size());
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return line;
}

std::string_view value_of(std::string_view line) { return line.substr(line.find('\t') + 1); }

}  // namespace

Fingerprint fingerprint_of(const Session& session, const FitOptions& options,
                           const BatchFeed& feed) {
  Fingerprint all{{"onnxgrad's version", version()}};
  all.emplace_back("the graph of model, loss and optimizer", session.checksum());
  for (auto& text : fit_option_rows().fixed(options)) all.push_back(std::move(text));
  const WorkerOptions& workers = session.options().workers;
  const auto weights = session.graph().state_weights();
  const NamedTensors state = session.runner().state().read();
  const Fingerprint others{
      {"epochs", std::to_string(options.epochs)},
      {"max_steps", std::to_string(options.max_steps)},
      {"batch_size", std::to_string(options.batch_size)},
      {"seed", fmt::format("{} and {}", options.seed, session.runner().seed())},
      {"validation", fmt::format("{}", options.validation_fraction)},
      {"metrics", std::to_string(options.metrics.size())},
      {"class_weights", class_weights_text(options)},
      {"row_weights", base::checksum_hex(std::as_bytes(std::span(options.row_weights)))},
      {"augment", augment_text(options.augment)},
      {"early stopping",
       options.early_stopping ? std::to_string(options.early_stopping->patience) : "none"},
      {"checkpoints", options.checkpoint
                          ? fmt::format("every {} steps", options.checkpoint->every_steps)
                          : "none"},
      {"bfloat16", fmt::format("{}", workers.as_bfloat16)},
      {"sync_batch_norm", fmt::format("{}", workers.sync_normalization)},
      {"exchange", fmt::format("{}", static_cast<int>(workers.exchange))},
      {"zero", fmt::format("{}", workers.shares_update)},
      {"sync_every", fmt::format("{}, {:g}, {:g}", workers.sync_every, workers.outer_learning_rate,
                                 workers.outer_momentum)},
      {"the number of training rows", text_of_number(feed.num_rows())},
      {"the learning rate", fmt::format("{}", session.runner().learning_rate())},
      {"the number of steps done", std::to_string(session.runner().steps())},
      {"the weights", checksum_of_state(state, true, weights)},
      {"the optimizer's state", checksum_of_state(state, false, weights)}};
  all.insert(all.end(), others.begin(), others.end());
  if (session.has_own_state()) all.pop_back();
  return all;
}

void check_same(const Fingerprint& fingerprint, const Workers& workers) {
  std::string mine;
  for (const auto& [name, value] : fingerprint) {
    mine += fmt::format("{}\t{}\n", name, without_line_ends(value));
  }
  const dist::Communicator& all = workers.communicator();
  const auto texts = workers.communicator().all_gather_texts(mine);
  for (std::size_t rank = 1; rank < texts.size(); ++rank) {
    std::string_view first = texts.front();
    std::string_view other = texts[rank];
    while (!first.empty() || !other.empty()) {
      const std::string_view expected = next_line(first);
      const std::string_view found = next_line(other);
      if (expected == found) continue;
      const std::string_view name = expected.substr(0, expected.find('\t'));
      throw OptionError(
          {.what = fmt::format("{} differs between workers: {} on {}, {} on {}", name,
                               value_of(expected), all.rank_name(0), value_of(found),
                               all.rank_name(static_cast<int>(rank))),
           .hint = "Start all workers with the same model, options and data, and the same version "
                   "of onnxgrad."});
    }
  }
}

}  // namespace onnxgrad::train
