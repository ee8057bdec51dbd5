#ifndef ONNXGRAD_TRAIN_FIT_OPTIONS_H_
#define ONNXGRAD_TRAIN_FIT_OPTIONS_H_

#include <variant>

#include "onnxgrad/trainer.h"
#include "train/tools/descriptions.h"

// The options of a fit that are numbers, flags or choices. A row is the only definition of one:
// Python's signature, docstring and checks, the command line and its help, the record of a run
// folder, the check of a resumed fit, and the documents are made from it.

namespace onnxgrad::train {

using FitOptionTable = DescriptionTable<std::variant<FitOptions>>;
const FitOptionTable& fit_option_rows();

/// Checks the options without the data. Throws: OptionError for options that have no meaning.
void check_fit_options(const FitOptions& options);

/// Text of augmentations: "none", "RandomFlip(probability=0.5), ...".
std::string augment_text(std::span<const Augmentation> augmentations);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_FIT_OPTIONS_H_
