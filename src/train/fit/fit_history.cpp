#include "train/fit/fit_history.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace onnxgrad::train {
namespace {

// Bits of "history/flags".
constexpr std::int64_t kHasLoss = 1;
constexpr std::int64_t kHasAccuracy = 2;
constexpr std::int64_t kIsBest = 4;
constexpr std::int64_t kHasMetrics = 8;
constexpr std::int64_t kHasNorm = 16;
constexpr std::int64_t kHasNoise = 32;

// Numbers of an epoch, by the names of their columns.
constexpr std::pair<const char*, double EpochLog::*> kNumberColumns[] = {
    {"train_loss", &EpochLog::train_loss},   {"lr", &EpochLog::learning_rate},
    {"seconds", &EpochLog::seconds},         {"rows_per_s", &EpochLog::rows_per_s},
    {"data_wait_s", &EpochLog::data_wait_s},
};
constexpr std::pair<const char*, std::int64_t EpochLog::*> kCountColumns[] = {
    {"steps", &EpochLog::steps},
    {"rows", &EpochLog::rows},
};
// Columns of several workers; a training by one worker does not store them.
constexpr std::pair<const char*, double EpochLog::*> kWorkerColumns[] = {
    {"network_wait_s", &EpochLog::network_wait_s},
    {"slowest_lag_s", &EpochLog::slowest_lag_s},
};
constexpr const char* kSlowestRank = "slowest_rank";

constexpr const char* kNoiseScale = "noise_scale";  // files of earlier versions lack it

// A column that an epoch may lack: it has 0 then, and the flag is not set.
struct OptionalColumn {
  const char* name;
  std::optional<double> EpochLog::* member;
  std::int64_t flag;
};
constexpr OptionalColumn kOptionals[] = {
    {"val_loss", &EpochLog::val_loss, kHasLoss},
    {"val_accuracy", &EpochLog::val_accuracy, kHasAccuracy},
    {"grad_norm", &EpochLog::grad_norm, kHasNorm},
    {kNoiseScale, &EpochLog::noise_scale, kHasNoise},
};

std::int64_t flags_of(const EpochLog& log) {
  std::int64_t flags = (log.is_best ? kIsBest : 0) | (log.val_metrics.empty() ? 0 : kHasMetrics);
  for (const auto& [name, member, flag] : kOptionals) flags |= log.*member ? flag : 0;
  return flags;
}

template <class T>
void add_column(Checkpoint& checkpoint, const std::string& name, std::span<const T> values) {
  checkpoint.set(fmt::format("{}history/{}", kReservedPrefix, name),
                 Tensor::from(values, Dims{static_cast<std::int64_t>(values.size())}));
}

std::string metric_column(const Metric& metric) { return "metric/" + metric.name; }

// A column of one number for each epoch.
template <class T>
std::vector<T> column_of(const Checkpoint& checkpoint, const std::string& name,
                         std::size_t num_epochs) {
  std::vector<T> column;
  if constexpr (std::is_same_v<T, double>) {
    column = checkpoint.get_doubles("history/" + name);
  } else {
    column = checkpoint.get_ints("history/" + name);
  }
  if (column.size() == num_epochs) return column;
  throw CheckpointError({.what = "the columns of the checkpoint's history differ in length",
                         .where = {.file = checkpoint.path},
                         .hint = "Use another checkpoint: this file was not written by onnxgrad."});
}

// Numbers of the epochs; those of a file without this column are 1, 2, 3, ...
std::vector<std::int64_t> read_epochs(const Checkpoint& checkpoint, std::size_t num_epochs,
                                      std::int64_t& stride) {
  std::vector<std::int64_t> numbers(num_epochs);
  std::iota(numbers.begin(), numbers.end(), std::int64_t{1});
  if (checkpoint.find(fmt::format("{}history/epoch", kReservedPrefix)) == nullptr) return numbers;
  stride = checkpoint.get_int("history/epoch_stride");
  numbers = column_of<std::int64_t>(checkpoint, "epoch", num_epochs);
  const auto later = std::ranges::adjacent_find(numbers, std::greater_equal<>());
  if (stride >= 1 && later == numbers.end() && (numbers.empty() || numbers.front() == 1)) {
    return numbers;
  }
  throw CheckpointError({.what = "the epochs of the checkpoint's history are not consecutive",
                         .where = {.file = checkpoint.path},
                         .hint = "Use another checkpoint: this file was not written by onnxgrad."});
}

void read_workers(const Checkpoint& checkpoint, std::span<EpochLog> logs) {
  if (checkpoint.find(fmt::format("{}history/{}", kReservedPrefix, kSlowestRank)) == nullptr)
    return;
  for (const auto& [name, member] : kWorkerColumns) {
    const auto values = column_of<double>(checkpoint, name, logs.size());
    for (std::size_t i = 0; i < logs.size(); ++i) logs[i].*member = values[i];
  }
  const auto ranks = column_of<std::int64_t>(checkpoint, kSlowestRank, logs.size());
  for (std::size_t i = 0; i < logs.size(); ++i) logs[i].slowest_rank = ranks[i];
}

void read_targets(const Checkpoint& checkpoint, std::span<const std::string> targets,
                  std::span<EpochLog> logs) {
  for (const std::string& target : targets) {
    const std::string name = "train_loss_" + target;
    const auto values = column_of<double>(checkpoint, "target/" + name, logs.size());
    for (std::size_t i = 0; i < logs.size(); ++i) {
      logs[i].target_losses.emplace_back(name, values[i]);
    }
  }
}

void read_metrics(const Checkpoint& checkpoint, const std::vector<Metric>& metrics,
                  std::span<const std::int64_t> flags, std::span<EpochLog> logs) {
  for (const Metric& metric : metrics) {
    const auto values = column_of<double>(checkpoint, metric_column(metric), logs.size());
    for (std::size_t i = 0; i < logs.size(); ++i) {
      if ((flags[i] & kHasMetrics) == 0) continue;
      logs[i].val_metrics.emplace_back("val_" + metric.name, values[i]);
    }
  }
}

}  // namespace

void append_epoch(History& history, const EpochLog& log, std::int64_t most) {
  const auto is_kept = [&](const EpochLog& known) {
    return known.epoch == 1 || known.epoch == history.best_epoch ||
           known.epoch % history.epoch_stride == 0;
  };
  auto& epochs = history.epochs;
  if (most > 0 && !epochs.empty() && !is_kept(epochs.back())) epochs.pop_back();
  epochs.push_back(log);
  if (most == 0 || std::ssize(epochs) <= most) return;
  const auto thin = [&] {
    const auto before_last = epochs.end() - 1;
    const auto end = std::remove_if(epochs.begin(), before_last,
                                    [&](const EpochLog& known) { return !is_kept(known); });
    epochs.erase(end, before_last);
  };
  thin();  // drops former best epochs
  while (std::ssize(epochs) > most / 4 * 3) {
    history.epoch_stride *= 2;
    thin();
  }
}

void write_history(Checkpoint& checkpoint, const FitOptions& options, const History& history,
                   std::int64_t steps) {
  const auto add_doubles = [&](const std::string& name, const auto& get) {
    std::vector<double> values;
    for (const EpochLog& log : history.epochs) values.push_back(std::invoke(get, log));
    add_column<double>(checkpoint, name, values);
  };
  const auto add_ints = [&](const std::string& name, const auto& get) {
    std::vector<std::int64_t> values;
    for (const EpochLog& log : history.epochs) values.push_back(std::invoke(get, log));
    add_column<std::int64_t>(checkpoint, name, values);
  };
  add_ints("flags", flags_of);
  add_ints("epoch", &EpochLog::epoch);
  for (const auto& [name, member] : kCountColumns) add_ints(name, member);
  for (const auto& [name, member] : kNumberColumns) add_doubles(name, member);
  for (const OptionalColumn& column : kOptionals) {
    add_doubles(column.name,
                [&column](const EpochLog& log) { return (log.*column.member).value_or(0); });
  }
  if (std::ranges::any_of(history.epochs,
                          [](const EpochLog& log) { return log.slowest_rank >= 0; })) {
    for (const auto& [name, member] : kWorkerColumns) add_doubles(name, member);
    add_ints(kSlowestRank, &EpochLog::slowest_rank);
  }
  const std::size_t targets = history.epochs.empty() ? 0 : history.epochs[0].target_losses.size();
  for (std::size_t t = 0; t < targets; ++t) {
    add_doubles("target/" + history.epochs[0].target_losses[t].first,
                [t](const EpochLog& log) { return log.target_losses[t].second; });
  }
  for (std::size_t m = 0; m < options.metrics.size(); ++m) {
    add_doubles(metric_column(options.metrics[m]), [m](const EpochLog& log) {
      return m < log.val_metrics.size() ? log.val_metrics[m].second : 0;
    });
  }
  checkpoint.set_int("history/epoch_stride", history.epoch_stride);
  const std::span<const double> losses = history.step_losses;
  add_column<double>(checkpoint, "step_losses",
                     losses.first(options.keep_step_losses ? static_cast<std::size_t>(steps) : 0));
}

void read_history(const Checkpoint& checkpoint, const FitOptions& options,
                  std::span<const std::string> targets, History& history) {
  const auto flags = checkpoint.get_ints("history/flags");
  const std::size_t num_epochs = flags.size();
  const auto epochs = read_epochs(checkpoint, num_epochs, history.epoch_stride);
  std::vector<EpochLog> logs(num_epochs);
  for (std::size_t i = 0; i < num_epochs; ++i) {
    logs[i].epoch = epochs[i];
    logs[i].is_best = (flags[i] & kIsBest) != 0;
  }
  for (const auto& [name, member] : kCountColumns) {
    const auto values = column_of<std::int64_t>(checkpoint, name, num_epochs);
    for (std::size_t i = 0; i < num_epochs; ++i) logs[i].*member = values[i];
  }
  for (const auto& [name, member] : kNumberColumns) {
    const auto values = column_of<double>(checkpoint, name, num_epochs);
    for (std::size_t i = 0; i < num_epochs; ++i) logs[i].*member = values[i];
  }
  for (const auto& [name, member, flag] : kOptionals) {
    const bool is_absent =
        checkpoint.find(fmt::format("{}history/{}", kReservedPrefix, name)) == nullptr;
    if (name == std::string_view(kNoiseScale) && is_absent) continue;
    const auto values = column_of<double>(checkpoint, name, num_epochs);
    for (std::size_t i = 0; i < num_epochs; ++i) {
      if ((flags[i] & flag) != 0) logs[i].*member = values[i];
    }
  }
  read_workers(checkpoint, logs);
  read_metrics(checkpoint, options.metrics, flags, logs);
  if (num_epochs > 0) read_targets(checkpoint, targets, logs);
  for (const EpochLog& log : logs) {
    if (log.is_best) history.best_epoch = log.epoch;
  }
  history.epochs.insert(history.epochs.end(), logs.begin(), logs.end());
  if (!options.keep_step_losses) return;
  history.step_losses = checkpoint.get_doubles("history/step_losses");
  if (std::ssize(history.step_losses) == checkpoint.get_int("fit/step")) return;
  throw CheckpointError({.what = "the checkpoint does not have the loss of each step",
                         .where = {.file = checkpoint.path},
                         .hint = "Resume without FitOptions::keep_step_losses, as in the first "
                                 "run."});
}

}  // namespace onnxgrad::train
