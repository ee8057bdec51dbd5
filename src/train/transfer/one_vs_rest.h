#ifndef ONNXGRAD_TRAIN_TRANSFER_ONE_VS_REST_H_
#define ONNXGRAD_TRAIN_TRANSFER_ONE_VS_REST_H_

#include "ir/graph.h"

namespace onnxgrad::train {

/// Joins the classifiers of scikit-learn's OneVsRestClassifier, one of two classes for each class
/// of the data, or one for two classes: a Concat of the second columns of logistic
/// LinearClassifiers of one input becomes a LinearRegressor and a Sigmoid, which compute the same.
void join_one_vs_rest(ir::Model& file);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_TRANSFER_ONE_VS_REST_H_
