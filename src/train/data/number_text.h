#ifndef ONNXGRAD_TRAIN_DATA_NUMBER_TEXT_H_
#define ONNXGRAD_TRAIN_DATA_NUMBER_TEXT_H_

#include <string>
#include <string_view>

namespace onnxgrad::train {

/// The number that a text is, without regard to the locale; an empty one is NaN. False: it is none.
bool parse_number(std::string_view text, double& number);

/// The beginning of a text, in quotes, for messages; control characters are shown as \xNN.
std::string in_quotes(std::string_view text);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_DATA_NUMBER_TEXT_H_
