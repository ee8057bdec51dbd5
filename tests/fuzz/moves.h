#ifndef ONNXGRAD_TESTS_FUZZ_MOVES_H_
#define ONNXGRAD_TESTS_FUZZ_MOVES_H_

#include <onnx/onnx_pb.h>

#include "mutator.h"

// Changes of a graph towards what files of exporters never have: nothing, too little, too much.

namespace onnxgrad::fuzz {

/// A list among the attributes, or a tensor, loses all elements.
void empty_list(onnx::GraphProto& graph, Random& random);
/// An initializer becomes an input too, with open dimensions, or loses its numbers to become one.
void open_initializer(onnx::ModelProto& model, onnx::GraphProto& graph, Random& random);
/// A dimension of an input or initializer becomes a number below 10; an initializer stays complete.
void resize(onnx::GraphProto& graph, Random& random);
/// An element of an integer tensor, or all, become a limit of its type or a neighbour of it.
void go_to_limit(onnx::GraphProto& graph, Random& random);
/// An attribute gets a value near a bound of its record in our registry, in any domain.
void go_to_bound(onnx::GraphProto& graph, Random& random);
/// A node gets an operator of ai.onnx.ml or com.microsoft.
void change_domain(onnx::ModelProto& model, onnx::GraphProto& graph, Random& random);
/// A value takes a way through a sequence before a node reads it.
void pass_through_sequence(onnx::GraphProto& graph, Random& random);

/// Bytes of an element of an integer type; 0 for other types.
std::size_t integer_bytes(int data_type);
/// A limit of an integer type of so many bytes, or a neighbour, as the bits of one.
std::uint64_t limit_bits(std::size_t bytes, bool is_unsigned, Random& random);

}  // namespace onnxgrad::fuzz

#endif  // ONNXGRAD_TESTS_FUZZ_MOVES_H_
