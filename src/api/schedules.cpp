#include "onnxgrad/schedules.h"

#include "onnxgrad/tables.h"
#include "train/schedules/schedules.h"

namespace onnxgrad {

Schedule with_warm_up(double length, Schedule then, double start_factor) {
  return ScheduleSequence{
      .parts = {LinearRate{.length = length, .start_factor = start_factor, .end_factor = 1},
                std::move(then)}};
}

std::vector<double> schedule_rates(const Schedule& schedule, double rate, std::int64_t epochs,
                                   std::int64_t steps_per_epoch,
                                   const std::vector<double>& losses) {
  train::ScheduleRun run(schedule, rate, epochs * steps_per_epoch, epochs);
  std::vector<double> rates;
  for (std::int64_t epoch = 0; epoch < epochs; ++epoch) {
    for (std::int64_t step = 0; step < steps_per_epoch; ++step) {
      rates.push_back(run.rate(epoch * steps_per_epoch + step));
    }
    if (epoch < static_cast<std::int64_t>(losses.size())) {
      run.end_epoch(losses[static_cast<std::size_t>(epoch)], (epoch + 1) * steps_per_epoch);
    }
  }
  return rates;
}

std::vector<DescriptionInfo> schedule_table() { return train::schedule_rows().infos(); }

Schedule schedule_from_name(std::string_view name) {
  Schedule schedule;
  schedule.rule = train::schedule_rows().from_name(name);
  return schedule;
}

std::vector<std::string> schedule_names() { return train::schedule_rows().names(); }

Schedule make_schedule(std::string_view type, const FieldValues& options) {
  Schedule schedule;
  schedule.rule = train::schedule_rows().make(type, options);
  return schedule;
}

std::string to_string(const Schedule& schedule) { return train::schedule_text(schedule); }

}  // namespace onnxgrad
