#include "train/data/targets.h"

#include <gmock/gmock.h>

#include <limits>

#include "onnxgrad/error.h"

namespace onnxgrad::train::targets_test {

using testing::ElementsAre;
using testing::HasSubstr;

LossInfo classifier(Tensor classes, std::int64_t count) {
  return {.line = "",
          .function = SoftmaxCrossEntropy{},
          .scores = "scores",
          .is_classifier = true,
          .num_classes = count,
          .classes = std::move(classes),
          .target = {.name = "label", .dtype = DataType::kInt64, .shape = {{Dimension{}}}}};
}

LossInfo regression(std::int64_t columns) {
  return {.line = "",
          .function = SquaredError{},
          .scores = "y",
          .target = {.name = "label",
                     .dtype = DataType::kFloat32,
                     .shape = {{Dimension{}, Dimension{.value = columns}}}}};
}

Tensor ints(const std::vector<std::int64_t>& values) {
  return Tensor::from(values, Dims{static_cast<std::int64_t>(values.size())});
}

Tensor texts(std::vector<std::string> values) {
  const auto count = static_cast<std::int64_t>(values.size());
  return Tensor::from_strings(std::move(values), Dims{count});
}

void expect_error(const LossInfo& loss, const Tensor& labels, const std::string& part) {
  try {
    encode_target(loss, labels);
    FAIL() << "no error, expected: " << part;
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), HasSubstr(part));
  }
}

TEST(Targets, LabelsBecomeNumbersByTheModelsList) {
  const LossInfo loss = classifier(ints({10, 20, 30}), 3);
  EXPECT_THAT(encode_target(loss, ints({30, 10, 20})).to_int64s(), ElementsAre(2, 0, 1));
  EXPECT_THAT(encode_target(loss, ints({30, 10}).cast(DataType::kFloat64)).to_int64s(),
              ElementsAre(2, 0));
  const Tensor column = ints({30, 10}).reshaped(Dims{2, 1});
  EXPECT_EQ(encode_target(loss, column).dims(), Dims({2}));
  const LossInfo named = classifier(texts({"cat", "dog"}), 2);
  EXPECT_THAT(encode_target(named, texts({"dog", "cat"})).to_int64s(), ElementsAre(1, 0));
}

TEST(Targets, WithoutAListLabelsAreNumbersAlready) {
  const LossInfo loss = classifier({}, 3);
  EXPECT_THAT(encode_target(loss, ints({2, 0})).to_int64s(), ElementsAre(2, 0));
  expect_error(loss, ints({2, 3}), "class number 3 in row 1 is not in 0 to 2");
  expect_error(loss, ints({-1}), "class number -1 in row 0");
}

TEST(Targets, UnknownLabelsAreNamedWithTheirRow) {
  expect_error(classifier(ints({10, 20}), 2), ints({10, 99}), "label 99 in row 1");
  expect_error(classifier(texts({"cat", "dog"}), 2), texts({"cat", "cow"}), "label 'cow' in row 1");
  expect_error(classifier(texts({"cat", "dog"}), 2), ints({0}), "classes are strings");
  expect_error(classifier(ints({0, 1}), 2), texts({"0"}), "classes are numbers");
  const Tensor fraction = Tensor::from(std::vector<double>{0, 0.5}, Dims{2});
  expect_error(classifier(ints({0, 1}), 2), fraction, "0.5 in row 1");
  const Tensor one_hot = ints({1, 0, 0, 1}).reshaped(Dims{2, 2});
  expect_error(classifier(ints({0, 1}), 2), one_hot, "shape [2, 2]");
}

TEST(Targets, QuantitiesTakeTheShapeOfTheScores) {
  const Tensor y = Tensor::from(std::vector<double>{1, 2, 3, 4}, Dims{4});
  const Tensor encoded = encode_target(regression(1), y);
  EXPECT_EQ(encoded.dims(), Dims({4, 1}));
  EXPECT_EQ(encoded.dtype(), DataType::kFloat32);
  expect_error(regression(2), y, "the target has 1 column, but 'y' has 2");
  expect_error(regression(1), Tensor::from(std::vector<double>{1, std::nan("")}, Dims{2}),
               "NaN in row 1");
}

TEST(Targets, ClassLabelsForSeveralColumnsAskForClasses) {
  EXPECT_TRUE(target_asks_for_classes(regression(3), ints({0, 2})));
  EXPECT_TRUE(target_asks_for_classes(regression(3), texts({"a"})));
  EXPECT_FALSE(target_asks_for_classes(regression(1), ints({0, 2})));
  EXPECT_FALSE(target_asks_for_classes(regression(3), ints({0, 2, 1}).reshaped(Dims{1, 3})));
  EXPECT_FALSE(target_asks_for_classes(regression(3), ints({0}).cast(DataType::kFloat32)));
  EXPECT_FALSE(target_asks_for_classes(classifier({}, 3), ints({0})));
}

TEST(Targets, OneHotRowsHaveTheirOnesAlongOneAxis) {
  const auto axis = [](std::vector<std::int64_t> numbers, Dims dims) {
    return one_hot_axis(regression(3), ints(std::move(numbers)).reshaped(std::move(dims)));
  };
  EXPECT_EQ(axis({0, 1, 0, 0, 0, 1}, Dims{2, 3}), 1);
  EXPECT_EQ(axis({0, 1, 0, 0, 0, 2}, Dims{2, 3}), std::nullopt);
  EXPECT_EQ(axis({0, 1, 0, 0, 0, 0}, Dims{2, 3}), std::nullopt);
  EXPECT_EQ(axis({0, 1, 0, 1, 0, 1}, Dims{2, 3}), std::nullopt);
  EXPECT_EQ(axis({0, 1, 0, 0}, Dims{2, 2}), std::nullopt);  // not the columns of the scores
  EXPECT_EQ(one_hot_axis(regression(3), texts({"a", "b", "c"}).reshaped(Dims{1, 3})), std::nullopt);
  EXPECT_EQ(one_hot_axis(regression(1), ints({1})), std::nullopt);
  LossInfo classes = classifier({}, 3);
  classes.one_hot_targets = true;
  classes.class_axis = 1;
  const Tensor rows = ints({0, 1, 0, 0, 0, 1}).reshaped(Dims{2, 3}).cast(DataType::kFloat32);
  EXPECT_EQ(encode_target(classes, rows).to_int64s(), (std::vector<std::int64_t>{1, 2}));
  expect_error(classes, ints({0, 1, 0, 1, 0, 1}).reshaped(Dims{2, 3}), "row 1");
}

TEST(Targets, NumbersThatDoNotFitAreRefused) {
  const auto refused = [](const Tensor& value, DataType dtype, const std::string& part) {
    try {
      convert_numbers("x", value, dtype);
      FAIL() << part;
    } catch (const DataError& error) {
      EXPECT_THAT(error.what(), HasSubstr(part));
    }
  };
  const auto doubles = [](std::vector<double> values) {
    const auto count = static_cast<std::int64_t>(values.size());
    return Tensor::from(values, Dims{count});
  };
  refused(doubles({1, 1e300}), DataType::kFloat32, "1e+300 in row 1");
  refused(doubles({1.5}), DataType::kInt64, "1.5 in row 0");
  refused(doubles({std::nan("")}), DataType::kInt64, "nan in row 0");
  refused(doubles({300}), DataType::kUint8, "300 in row 0");
  refused(ints({-1}), DataType::kUint32, "-1 in row 0");
  refused(texts({"1"}), DataType::kFloat32, "has strings, expected float32");
  refused(texts({"1", "n/a"}), DataType::kFloat32, "'n/a' in row 1, which is not a number");
  refused(ints({2}), DataType::kBool, "2 in row 0");
  EXPECT_THAT(convert_numbers("x", doubles({1, -2}), DataType::kInt8).to_doubles(),
              ElementsAre(1, -2));
  EXPECT_EQ(convert_numbers("x", doubles({1e-300}), DataType::kFloat32).to_doubles()[0], 0);
}

TEST(Targets, FiniteNumbersPassAndOthersAreFound) {
  std::vector<float> values(5000, 1.0F);
  const auto tensor = [&] { return Tensor::from(values, Dims{1000, 5}); };
  EXPECT_NO_THROW(check_finite("x", tensor()));
  values[0] = std::numeric_limits<float>::max();
  values[1] = std::numeric_limits<float>::max();
  EXPECT_NO_THROW(check_finite("x", tensor()));
  values[4321] = std::numeric_limits<float>::infinity();
  try {
    check_finite("x", tensor());
    FAIL();
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), HasSubstr("'x' has an infinite number in row 864, column 1"));
  }
  values[17] = std::nanf("");
  EXPECT_THROW(check_finite("x", tensor()), DataError);
  EXPECT_NO_THROW(check_finite("ids", ints({1, 2})));
}

// Several threads scan a large array: the first bad number is named, whoever finds it.
TEST(Targets, TheFirstBadNumberOfALargeArrayIsNamedForEveryNumberOfThreads) {
  const std::int64_t rows = (std::int64_t{33} << 20) / 8;  // four parts and some bytes
  Tensor tensor = Tensor::empty(DataType::kFloat32, Dims{rows + 3, 2});
  const auto values = tensor.mutable_data<float>();
  std::ranges::fill(values, 1.0F);
  for (const int threads : {1, 2, 3, 5}) {
    EXPECT_NO_THROW(check_finite("x", tensor, true, threads)) << threads;
  }
  // From the last to the first: each is before those that stay.
  for (const std::int64_t row : {rows + 2, rows, rows / 2 + 1, rows / 4 - 1, std::int64_t{0}}) {
    values[static_cast<std::size_t>(row * 2 + 1)] = std::nanf("");
    for (const int threads : {1, 2, 3, 5}) {
      try {
        check_finite("x", tensor, true, threads);
        FAIL() << row << " with " << threads;
      } catch (const DataError& error) {
        EXPECT_THAT(error.what(),
                    HasSubstr("'x' has NaN in row " + std::to_string(row) + ", column 1"));
      }
    }
  }
}

}  // namespace onnxgrad::train::targets_test
