#ifndef ONNXGRAD_TRAIN_DATA_NUMBER_TEXT_H_
#define ONNXGRAD_TRAIN_DATA_NUMBER_TEXT_H_

#include <string>
#include <string_view>

namespace onnxgrad::train {

/// Parses a number, independently of the locale; an empty string is NaN. False: not a number.
bool parse_number(std::string_view text, double& number);

/// Parses a number, or a truth value as pandas and spreadsheets write it: "True" is 1, "FALSE" 0.
bool parse_number_or_truth(std::string_view text, double& number);

/// The beginning of a string, in quotes, for messages; control characters are shown as \xNN.
std::string in_quotes(std::string_view text);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_DATA_NUMBER_TEXT_H_
