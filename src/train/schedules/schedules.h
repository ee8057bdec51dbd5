#ifndef ONNXGRAD_TRAIN_SCHEDULES_SCHEDULES_H_
#define ONNXGRAD_TRAIN_SCHEDULES_SCHEDULES_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ir/builder.h"
#include "onnxgrad/schedules.h"
#include "train/tools/descriptions.h"

namespace onnxgrad::train {

/// Text of a schedule, "CosineDecay(length=0, minimum_factor=0, unit=step)"; numbers round-trip
/// exactly.
std::string schedule_text(const Schedule& schedule);

/// Whether rates depend on the number of updates in the whole fit: those with a length that is a
/// fraction of it or the rest, and sequences with parts that count epochs.
bool needs_updates(const Schedule& schedule);
/// Whether a part of the schedule measures time in epochs.
bool counts_epochs(const Schedule& schedule);
/// Number of plateaus in a schedule.
std::size_t num_plateaus(const Schedule& schedule);

struct ScheduleNode;

/// A schedule in a fit: lengths are numbers, and plateaus have a state.
class ScheduleRun {
 public:
  /// rate: of the optimizer; updates, epochs: of the whole fit. updates may be missing unless
  /// needs_updates(schedule).
  /// Throws: OptionError (a parameter out of range, naming it).
  ScheduleRun(const Schedule& schedule, double rate, std::optional<std::int64_t> updates,
              std::int64_t epochs);

  /// The learning rate of an update, from 0. `epoch`, from 0: the one that contains it, if the
  /// number of updates is not known.
  double rate(std::int64_t update, std::int64_t epoch = 0) const;
  /// Writes the learning rate of an update as nodes of a graph: rate and update (from 0) are
  /// float64 of rank 0, and so is the result. plateau_factors: one for each plateau, in the order
  /// of the description. The number of updates must be known if counts_epochs().
  ir::Value* write(ir::GraphBuilder& g, ir::Value* rate, ir::Value* update,
                   std::span<ir::Value* const> plateau_factors) const;
  /// Passes plateaus the loss of an epoch that ended after `updates_done` updates.
  void end_epoch(double loss, std::int64_t updates_done);

  /// The state of plateaus as a row of numbers, for checkpoints.
  std::vector<double> state() const;
  /// Restores the state of plateaus. Throws: CheckpointError if another schedule wrote the row.
  void load_state(const std::vector<double>& state);

 private:
  struct PlateauState {
    double factor = 1;
    std::optional<double> best = {};
    std::int64_t bad_epochs = 0;
    std::int64_t cooling = 0;
  };
  /// A node of the tree of schedules.
  struct Part {
    Schedule::Rule rule;
    double length = 0;  ///< in its unit; 0 for schedules that never end
    PlateauState plateau = {};
    std::vector<Part> parts = {};
    std::vector<std::int64_t> starts = {};  ///< starts of a sequence's parts, in updates
  };

  Part make_part(const Schedule& schedule, std::int64_t start) const;
  double length_in_updates(const Part& part) const;
  double part_rate(const Part& part, double rate, std::int64_t update, std::int64_t epoch) const;
  ScheduleNode write_part(const Part& part, ScheduleNode rate, ScheduleNode update,
                          std::span<ir::Value* const>& plateau_factors) const;
  static void end_epoch(Part& part, double loss, std::int64_t updates_done);
  static const Part& active(const Part& part, std::int64_t update, std::int64_t& local);
  static void visit_plateaus(Part& part, const auto& visit);

  double rate_;
  bool knows_updates_;
  double updates_;
  double epochs_;
  Part root_;
};

/// The table of schedules; their formulas are in train/schedules/schedule_formulas.h.
const DescriptionTable<Schedule::Rule>& schedule_rows();

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_SCHEDULES_SCHEDULES_H_
