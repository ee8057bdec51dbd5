#include "train/schedules/schedules.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/check.h"
#include "train/schedules/schedule_formulas.h"

// ScheduleRun converts t and T of the formulas to the unit of the schedule and selects the part of
// a sequence: for a number, and as nodes of a graph.

namespace onnxgrad::train {
namespace {

constexpr std::size_t kNumbersPerPlateau = 4;

template <class Spec>
constexpr bool kHasLength = requires(const Spec& spec) { spec.length; };

// Schedules after which the next part of a sequence begins.
template <class Spec>
constexpr bool kEnds = kHasLength<Spec> && !std::is_same_v<Spec, CosineRestarts>;

ScheduleUnit unit_of(const auto& spec) {
  if constexpr (requires { spec.unit; }) {
    return spec.unit;
  } else {
    return ScheduleUnit::kStep;
  }
}

bool takes_updates(const Schedule& schedule, bool in_sequence) {
  return std::visit(
      [&](const auto& spec) {
        using Spec = std::decay_t<decltype(spec)>;
        constexpr bool kIsSequence = std::is_same_v<Spec, ScheduleSequence>;
        if constexpr (kIsSequence || std::is_same_v<Spec, ScheduleProduct>) {
          return std::ranges::any_of(spec.parts, [&](const Schedule& part) {
            return takes_updates(part, in_sequence || kIsSequence);
          });
        } else {
          const bool in_epochs = unit_of(spec) == ScheduleUnit::kEpoch;
          if (in_epochs) return in_sequence;
          if constexpr (kHasLength<Spec>) return spec.length < 1;
          return false;
        }
      },
      schedule.rule);
}

}  // namespace

bool needs_updates(const Schedule& schedule) { return takes_updates(schedule, false); }

bool counts_epochs(const Schedule& schedule) {
  return std::visit(
      [](const auto& spec) {
        if constexpr (requires { spec.parts; }) {
          return std::ranges::any_of(spec.parts, counts_epochs);
        } else {
          return unit_of(spec) == ScheduleUnit::kEpoch;
        }
      },
      schedule.rule);
}

std::size_t num_plateaus(const Schedule& schedule) {
  return std::visit(
      [](const auto& spec) -> std::size_t {
        using Spec = std::decay_t<decltype(spec)>;
        std::size_t count = std::is_same_v<Spec, Plateau> ? 1 : 0;
        if constexpr (requires { spec.parts; }) {
          for (const Schedule& part : spec.parts) count += num_plateaus(part);
        }
        return count;
      },
      schedule.rule);
}

ScheduleRun::ScheduleRun(const Schedule& schedule, double rate, std::optional<std::int64_t> updates,
                         std::int64_t epochs)
    : rate_(rate),
      knows_updates_(updates.has_value()),
      updates_(static_cast<double>(std::max<std::int64_t>(updates.value_or(1), 1))),
      epochs_(static_cast<double>(std::max<std::int64_t>(epochs, 1))),
      root_(make_part(schedule, 0)) {}

// `start`: updates before it.
ScheduleRun::Part ScheduleRun::make_part(const Schedule& schedule, std::int64_t start) const {
  schedule_rows().check(schedule.rule, "schedule: ");
  Part part{.rule = schedule.rule};
  std::visit(
      [&](const auto& spec) {
        using Spec = std::decay_t<decltype(spec)>;
        if constexpr (kHasLength<Spec>) {
          const bool in_epochs = unit_of(spec) == ScheduleUnit::kEpoch;
          const double whole = in_epochs ? epochs_ : updates_;
          const double before = static_cast<double>(start) * (in_epochs ? epochs_ / updates_ : 1.0);
          part.length = spec.length == 0  ? std::max(whole - before, 0.0)
                        : spec.length < 1 ? spec.length * whole
                                          : spec.length;
        }
        if constexpr (std::is_same_v<Spec, ScheduleProduct>) {
          for (const Schedule& child : spec.parts) part.parts.push_back(make_part(child, start));
        }
        if constexpr (std::is_same_v<Spec, ScheduleSequence>) {
          std::int64_t begin = 0;
          for (const Schedule& child : spec.parts) {
            part.starts.push_back(begin);
            part.parts.push_back(make_part(child, start + begin));
            begin += static_cast<std::int64_t>(std::ceil(length_in_updates(part.parts.back())));
          }
        }
      },
      schedule.rule);
  return part;
}

// All that remains, for schedules without an end.
double ScheduleRun::length_in_updates(const Part& part) const {
  return std::visit(
      [&](const auto& spec) {
        if constexpr (kEnds<std::decay_t<decltype(spec)>>) {
          const bool in_epochs = unit_of(spec) == ScheduleUnit::kEpoch;
          return part.length * (in_epochs ? updates_ / epochs_ : 1.0);
        } else {
          return updates_;
        }
      },
      part.rule);
}

double ScheduleRun::rate(std::int64_t update, std::int64_t epoch) const {
  return part_rate(root_, rate_, update, epoch);
}

double ScheduleRun::part_rate(const Part& part, double rate, std::int64_t update,
                              std::int64_t epoch) const {
  return std::visit(
      [&](const auto& spec) {
        using Spec = std::decay_t<decltype(spec)>;
        if constexpr (std::is_same_v<Spec, ScheduleSequence>) {
          std::int64_t local = 0;
          const Part& child = active(part, update, local);
          return part_rate(child, rate, local, epoch);
        } else if constexpr (std::is_same_v<Spec, ScheduleProduct>) {
          double product = rate;
          for (const Part& child : part.parts) product = part_rate(child, product, update, epoch);
          return product;
        } else if constexpr (std::is_same_v<Spec, Plateau>) {
          return rate * part.plateau.factor;
        } else {
          const auto t = static_cast<double>(update);
          const bool in_epochs = unit_of(spec) == ScheduleUnit::kEpoch;
          if (!in_epochs) return formula(spec, rate, t, part.length);
          const double epochs_done =
              knows_updates_ ? std::floor(t * epochs_ / updates_) : static_cast<double>(epoch);
          return formula(spec, rate, epochs_done, part.length);
        }
      },
      part.rule);
}

ir::Value* ScheduleRun::write(ir::GraphBuilder& g, ir::Value* rate, ir::Value* update,
                              std::span<ir::Value* const> plateau_factors) const {
  return write_part(root_, {&g, rate}, {&g, update}, plateau_factors).value;
}

ScheduleNode ScheduleRun::write_part(const Part& part, ScheduleNode rate, ScheduleNode update,
                                     std::span<ir::Value* const>& plateau_factors) const {
  const auto write_rule = [&](const auto& spec) {
    using Spec = std::decay_t<decltype(spec)>;
    if constexpr (std::is_same_v<Spec, ScheduleSequence>) {
      ScheduleNode result = write_part(part.parts.front(), rate, update, plateau_factors);
      for (std::size_t i = 1; i < part.parts.size(); ++i) {
        const auto start = static_cast<double>(part.starts[i]);
        const ScheduleNode next = write_part(part.parts[i], rate, update - start, plateau_factors);
        result = select(at_most(start, update), next, result);
      }
      return result;
    } else if constexpr (std::is_same_v<Spec, ScheduleProduct>) {
      ScheduleNode product = rate;
      for (const Part& child : part.parts) {
        product = write_part(child, product, update, plateau_factors);
      }
      return product;
    } else if constexpr (std::is_same_v<Spec, Plateau>) {
      const ScheduleNode factor{rate.g, plateau_factors.front()};
      plateau_factors = plateau_factors.subspan(1);
      return rate * factor;
    } else {
      if (unit_of(spec) != ScheduleUnit::kEpoch) return formula(spec, rate, update, part.length);
      return formula(spec, rate, floor(update * epochs_ / updates_), part.length);
    }
  };
  return std::visit(write_rule, part.rule);
}

// The part of a sequence that `update` falls into; `local`: the update counted from its start.
const ScheduleRun::Part& ScheduleRun::active(const Part& part, std::int64_t update,
                                             std::int64_t& local) {
  std::size_t i = part.parts.size() - 1;
  while (i > 0 && update < part.starts[i]) --i;
  local = update - part.starts[i];
  return part.parts[i];
}

void ScheduleRun::end_epoch(double loss, std::int64_t updates_done) {
  end_epoch(root_, loss, updates_done);
}

void ScheduleRun::end_epoch(Part& part, double loss, std::int64_t updates_done) {
  if (std::holds_alternative<ScheduleSequence>(part.rule)) {
    std::int64_t local = 0;
    const Part& child = active(part, std::max<std::int64_t>(updates_done - 1, 0), local);
    end_epoch(part.parts[static_cast<std::size_t>(&child - part.parts.data())], loss, local + 1);
    return;
  }
  for (Part& child : part.parts) end_epoch(child, loss, updates_done);
  const auto* spec = std::get_if<Plateau>(&part.rule);
  if (spec == nullptr) return;
  PlateauState& state = part.plateau;
  const bool is_better =
      state.best ? loss < *state.best - spec->threshold * std::abs(*state.best) : !std::isnan(loss);
  if (is_better) {
    state.best = loss;
    state.bad_epochs = 0;
  } else {
    ++state.bad_epochs;
  }
  if (state.cooling > 0) {
    --state.cooling;
    state.bad_epochs = 0;
  }
  if (state.bad_epochs > spec->patience) {
    state.factor = std::max(state.factor * spec->factor, spec->minimum_factor);
    state.cooling = spec->cooldown;
    state.bad_epochs = 0;
  }
}

void ScheduleRun::visit_plateaus(Part& part, const auto& visit) {
  if (std::holds_alternative<Plateau>(part.rule)) visit(part.plateau);
  for (Part& child : part.parts) visit_plateaus(child, visit);
}

std::vector<double> ScheduleRun::state() const {
  std::vector<double> numbers;
  Part copy = root_;
  visit_plateaus(copy, [&](const PlateauState& state) {
    numbers.insert(numbers.end(),
                   {state.factor, state.best.value_or(std::nan("")),
                    static_cast<double>(state.bad_epochs), static_cast<double>(state.cooling)});
  });
  return numbers;
}

void ScheduleRun::load_state(const std::vector<double>& state) {
  if (state.size() != this->state().size()) {
    throw CheckpointError({.what = "the state of the schedule has " + std::to_string(state.size()) +
                                   " numbers, expected " + std::to_string(this->state().size()),
                           .hint = "Resume with the schedule that the run began with."});
  }
  const double* next = state.data();
  visit_plateaus(root_, [&](PlateauState& plateau) {
    plateau = {.factor = next[0],
               .best = std::isnan(next[1]) ? std::nullopt : std::optional(next[1]),
               .bad_epochs = static_cast<std::int64_t>(next[2]),
               .cooling = static_cast<std::int64_t>(next[3])};
    next += kNumbersPerPlateau;
  });
}

}  // namespace onnxgrad::train
