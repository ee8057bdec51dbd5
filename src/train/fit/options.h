#ifndef ONNXGRAD_TRAIN_FIT_OPTIONS_H_
#define ONNXGRAD_TRAIN_FIT_OPTIONS_H_

#include <variant>

#include "onnxgrad/trainer.h"
#include "train/tools/descriptions.h"

// The options of a fit that are numbers, flags or choices. A row is all that there is to say about
// one: Python's signature, docstring and checks, the command line and its help, the record of a
// run folder, what a resumed fit must have too, and the documents are made of it.

namespace onnxgrad::train {

using FitOptionTable = DescriptionTable<std::variant<FitOptions>>;
const FitOptionTable& fit_option_rows();

/// Throws: OptionError for options that have no meaning, whatever the data.
void check_fit_options(const FitOptions& options);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_FIT_OPTIONS_H_
