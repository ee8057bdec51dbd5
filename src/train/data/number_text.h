#ifndef ONNXGRAD_TRAIN_DATA_NUMBER_TEXT_H_
#define ONNXGRAD_TRAIN_DATA_NUMBER_TEXT_H_

#include <string>
#include <string_view>

namespace onnxgrad::train {

/// Parses a number, independently of the locale; an empty string is NaN. False: not a number.
bool parse_number(std::string_view text, double& number);

/// The beginning of a string, in quotes, for messages; control characters are shown as \xNN.
std::string in_quotes(std::string_view text);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_DATA_NUMBER_TEXT_H_
