#include "train/fit/options.h"

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "train/data/augment.h"

namespace onnxgrad::train {
namespace {

using Row = Field;

// A resumed fit must have the same.
Row fixed(Row row) {
  row.info.is_fixed = true;
  return row;
}

// 0 is the size that suits the data, and that of chunks that are batches.
Row batch_size() {
  Row row = zero_is("32, or all rows with L-BFGS; batches of an iterable are taken as they come",
                    field("batch_size", &FitOptions::batch_size, kAtLeastOne, "Rows of a step."));
  row.read = [](const void* member, const FieldInfo&) -> FieldValue {
    const auto batch_size = *static_cast<const std::int64_t*>(member);
    return batch_size == FitOptions::kAsTheyCome ? 0 : batch_size;
  };
  return row;
}

Row max_time() {
  Row row =
      field("max_seconds", &FitOptions::max_seconds, kAboveZero,
            "Seconds, or a string such as 90s, 30m or 1.5h: training ends with the first step "
            "that ends later.");
  row.info.is_duration = true;
  return called("max_time", zero_is("no limit", std::move(row)));
}

Row non_finite() {
  Row row = field(
      "on_non_finite", &FitOptions::on_non_finite, {"raise", "stop", "ignore", "skip"},
      "What a loss that is NaN or infinite does: raise an error, stop the training, skip the step, "
      "or nothing. The error is a ConvergenceError; a training that is stopped has its message as "
      "stop_reason; a step that is skipped changes neither weights nor optimizer state, also where "
      "the loss is finite and the new weights are not.");
  row.info.aliases = {"on_nan"};
  return called("non_finite", std::move(row));
}

Row snapshot_every() {
  return called(
      "snapshot_every",
      zero_is("an epoch, or of data in chunks a block of rows",
              field("snapshot_every_steps", &FitOptions::snapshot_every_steps, kAtLeastOne,
                    "Steps from one copy of weights and optimizer state to the next. After a loss "
                    "that is not finite, with non_finite raise or stop, the steps since the copy "
                    "are done again.")));
}

Row max_history() {
  return zero_is("no limit",
                 field("max_history", &FitOptions::max_history, {.minimum = 8},
                       "Epochs that history has at most. Of a longer fit it has every second, "
                       "fourth, eighth, ... epoch, whose numbers are history['epoch'], and always "
                       "the first, the best and the newest one. Files of callbacks have all."));
}

struct Topic {
  std::string name;  // empty: not on the command line
  std::vector<Row> rows;
};

std::vector<Topic> topics() {
  return {
      {"When training ends",
       {field("epochs", &FitOptions::epochs, kAtLeastOne,
              "How often all rows are used. It is the total of a resumed fit.")}},
      {"Data",
       {batch_size(),
        fixed(field("shuffle", &FitOptions::shuffle,
                    "A new order of the rows in each epoch. It follows from the seed and the "
                    "number of the epoch. Of data in chunks the chunks are shuffled, as far as the "
                    "source can, and the rows of each block; batches that are taken as they come "
                    "are not.")),
        fixed(field("sampling", &FitOptions::sampling, {"rows", "windows", "balanced", "weighted"},
                    "rows: each once in an epoch; windows: batches of consecutive rows of arrays "
                    "that begin at random places; balanced: rows of every class equally often; "
                    "weighted: rows as often as row_weights say. There are ceil(N / batch_size) "
                    "windows, read where they are; a row can come twice or not at all.")),
        fixed(field("replacement", &FitOptions::replacement,
                    "Balanced and weighted rows can come more than once in an epoch. False: of "
                    "every class as many as the smallest has; rows of larger weight come earlier, "
                    "those of weight 0 not at all.")),
        fixed(zero_is("as many as there are",
                      field("epoch_rows", &FitOptions::epoch_rows, kAtLeastOne,
                            "Balanced or weighted rows of an epoch."))),
        fixed(field("drop_last", &FitOptions::drop_last,
                    "Leave out a last batch with fewer rows than the others.")),
        field("allow_nan", &FitOptions::allow_nan, "Let NaN and infinity in the inputs through."),
        fixed(field("buffer_bytes", &FitOptions::buffer_bytes, kAtLeastOne,
                    "Memory for rows that are read in chunks. They are collected in two blocks, "
                    "of half that size each."))}},
      {"Validation",
       {fixed(field("validation_every", &FitOptions::validation_every, kAtLeastOne,
                    "Epochs from one validation to the next."))}},
      {"When training ends",
       {zero_is("no limit", field("max_steps", &FitOptions::max_steps, kAtLeastOne,
                                  "Training ends with this step, also within an epoch. Steps of "
                                  "all epochs count, and those before a fit was resumed; a "
                                  "schedule has this many.")),
        max_time(),
        field("keep_best", &FitOptions::keep_best,
              "End with the weights of the best epoch, as early stopping does."),
        non_finite(), snapshot_every()}},
      {"Results",
       {field("grad_norm", &FitOptions::grad_norm,
              "Record the norm of all gradients together, before any clipping. It is grad_norm in "
              "the history (the mean over the epoch's steps) and in the logs of steps."),
        field("noise_scale", &FitOptions::noise_scale,
              "Record the gradient noise scale, the batch size beyond which larger batches save "
              "few steps. It needs accumulate=2 or more: tr(S) / |G|^2 from the norms of gradients "
              "of single and of accumulated batches (McCandlish et al., 2018).")}},
      {"", {max_history()}},  // for the API only: history files have all epochs
  };
}

}  // namespace

const FitOptionTable& fit_option_rows() {
  static const FitOptionTable table = [] {
    Described<FitOptions> described{
        .type = "FitOptions", .python_name = "FitOptions", .summary = "Options of Trainer.fit"};
    for (Topic& topic : topics()) {
      for (Row& row : topic.rows) {
        row.info.topic = topic.name;
        described.fields.push_back(std::move(row));
      }
    }
    FitOptionTable made("options of a fit");
    made.add(std::move(described));
    return made;
  }();
  return table;
}

std::string augment_text(std::span<const Augmentation> augmentations) {
  std::string text;
  for (const Augmentation& one : augmentations) {
    text += (text.empty() ? "" : ", ") + augmentation_rows().to_string(one, /*is_whole=*/true);
  }
  return text.empty() ? "none" : text;
}

void check_fit_options(const FitOptions& options) {
  fit_option_rows().check(options, "");
  const auto refuse = [](const char* what, const char* hint) {
    throw OptionError({.what = what, .hint = hint});
  };
  if (options.every_n_steps < 0) {
    refuse("every_n_steps is below 0", "Give a number of steps; 0 stands for never.");
  }
  const bool has_rows = options.validation != nullptr || options.validation_source != nullptr;
  if (options.validation_fraction != 0 && has_rows) {
    refuse("both a validation fraction and validation data were given", "Give one of them.");
  }
  if (!options.metrics.empty() && !has_rows && options.validation_fraction == 0) {
    refuse("metrics need validation rows, and there is no validation",
           "Give validation rows, or a share of the rows for it.");
  }
  if (options.sampling != Sampling::kRows && !options.shuffle) {
    refuse(
        "windows begin at random places and weighted or balanced rows are drawn, but shuffle is "
        "false",
        "Leave shuffle true, or take the rows as they are.");
  }
  const bool has_weights = !options.row_weights.empty() || options.on_row_weights;
  if (has_weights && options.sampling != Sampling::kWeighted) {
    refuse("row_weights have no effect without sampling='weighted'",
           "Give sampling='weighted', or leave them out.");
  }
}

}  // namespace onnxgrad::train
