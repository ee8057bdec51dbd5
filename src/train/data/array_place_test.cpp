#include "train/data/array_place.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>

#include "onnxgrad/data_files.h"
#include "train/data/number_text.h"

namespace onnxgrad::train {
namespace {

TEST(ArrayPlace, CountsRowsAndColumnsWhereTheyHaveNoNames) {
  const Dataset data{.inputs = {}, .target = {}, .first_row = 100};
  EXPECT_EQ(input_place(data, "x", "").element(Dims{10, 4}, 9), "row 102, column 1");
  EXPECT_EQ(target_place(data, "", "").element(Dims{10}, 9), "row 109");
  EXPECT_EQ(weight_place(data, "validation").row(3), "row 103 of the validation rows");
  EXPECT_EQ(ArrayPlace("x").element(Dims{}, 0), "the scalar");
  EXPECT_EQ(target_place(data, "", "").where().file, "");
}

TEST(ArrayPlace, NamesLinesAndColumns) {
  auto origin = std::make_shared<DataOrigin>();
  origin->file = "data.csv";
  origin->line_of = [](std::int64_t row) { return 2 * row; };
  origin->inputs = {{.array = "x", .names = {"age", "height"}}};
  origin->targets = {{.array = "", .names = {"price"}}};
  origin->sample_weight.names = {"w"};
  const Dataset data{.inputs = {}, .target = {}, .first_row = 5, .origin = origin};
  EXPECT_EQ(input_place(data, "x", "").element(Dims{10, 2}, 3), "line 12, column 'height'");
  EXPECT_EQ(input_place(data, "x", "").where().file, "data.csv");
  EXPECT_EQ(target_place(data, "", "").element(Dims{10, 1}, 3), "line 16, column 'price'");
  EXPECT_EQ(target_place(data, "", "").where().value, "price");
  EXPECT_EQ(weight_place(data, "").element(Dims{10}, 0), "line 10, column 'w'");
  // An input without names of columns.
  EXPECT_EQ(input_place(data, "z", "").element(Dims{10, 2}, 3), "line 12, column 1");
}

TEST(NumberHint, SaysWhatIsWrongWithATextThatIsNoNumber) {
  const auto hint = [](const char* text) { return number_hint(text); };
  EXPECT_EQ(hint("0,125"),
            "Write 0.125 or 0125: numbers have a decimal point, and no thousands "
            "separators.");
  EXPECT_EQ(hint("3,5"), "Write it with a decimal point: 3.5.");
  EXPECT_EQ(hint("-3,5e2"), "Write it with a decimal point: -3.5e2.");
  EXPECT_EQ(hint("1,234.5"), "Write it without thousands separators: 1234.5.");
  EXPECT_EQ(hint("-1,234,567"), "Write it without thousands separators: -1234567.");
  EXPECT_EQ(hint("12%"), "Write it without the percent sign.");
  EXPECT_EQ(hint("$5"), "Write it without the currency sign.");
  EXPECT_EQ(hint("5 €"), "Write it without the currency sign.");
  EXPECT_EQ(hint("1 000"), "Write it without spaces between the digits.");
  EXPECT_EQ(hint("N/A"), "Fill such cells with numbers, or remove their rows.");
  EXPECT_EQ(hint("red"), "Replace it by a number, or remove such rows.");
  EXPECT_EQ(number_hint("2024-01-05", "day"),
            "Replace dates by numbers, such as the days since the first one, or leave the column "
            "out: ignored='day'.");
  EXPECT_EQ(number_hint("5.1.2024 12:00", ""),
            "Replace dates by numbers, such as the days since the first one.");
  EXPECT_EQ(number_hint("red", "colour"),
            "Export the encoding of strings with the model (a scikit-learn pipeline), or leave the "
            "column out: ignored='colour'.");
}

TEST(NumberText, IsReadAsStrtodDoes) {
  const auto number = [](const char* text) {
    double value = 0;
    EXPECT_TRUE(parse_number(text, value)) << text;
    return value;
  };
  EXPECT_EQ(number("+1.5e3"), 1500);
  EXPECT_EQ(number("1e400"), HUGE_VAL);
  EXPECT_EQ(number("-1e-400"), 0);
  EXPECT_TRUE(std::isnan(number("")));
  double value = 0;
  for (const char* text : {"1,5", "x", "1 2", "+-1", "0x10", "--1"}) {
    EXPECT_FALSE(parse_number(text, value)) << text;
  }
}

TEST(NumberText, IsShownInQuotes) {
  EXPECT_EQ(in_quotes("a\tb"), "'a\\x09b'");
  EXPECT_EQ(in_quotes(std::string(70, 'x')), "'" + std::string(60, 'x') + "...'");
}

}  // namespace
}  // namespace onnxgrad::train
