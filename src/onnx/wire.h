#ifndef ONNXGRAD_ONNX_WIRE_H_
#define ONNXGRAD_ONNX_WIRE_H_

#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

// Reader and writer of protobuf's wire format that build no messages: a model's tensors stay in
// place in the file, and all positions in it are known. Field numbers are those of onnx-ml.pb.h. No
// function recurses.

namespace onnxgrad::onnx_io {

/// The size that protobuf allows one message.
inline constexpr std::int64_t kMaxMessageBytes = std::numeric_limits<std::int32_t>::max();

enum class WireType : std::uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

/// Iterates over the fields of one message:
///   for (WireReader in(bytes); in.next();) switch (in.field()) { case k...: in.text(); ... }
/// Throws (all functions): ModelError for bytes that are not a message or a field of another type.
class WireReader {
 public:
  explicit WireReader(std::string_view message) : rest_(message) {}

  /// Goes to the next field; false at the end.
  bool next();
  int field() const { return field_; }
  WireType type() const { return type_; }

  std::uint64_t varint() const;
  std::int64_t int64() const { return static_cast<std::int64_t>(varint()); }
  /// Value of an enumeration or int32; negative ones are written as ten bytes.
  std::int32_t int32() const {
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(varint()));
  }
  float float32() const;
  /// Value of a string, bytes or message field: a view into the file.
  std::string_view bytes() const;
  /// The bytes that encode the length of a kBytes value; they come right before it.
  std::string_view length_prefix() const { return prefix_; }
  /// The bytes of the value as in the file, without the tag and the length of kBytes.
  std::string_view raw_value() const { return bytes_; }
  /// A string that must be UTF-8: names and strings that reach messages and Python.
  std::string_view text() const;

  /// Appends the elements of the current repeated field, packed or not.
  void append_to(std::vector<std::int64_t>& values) const;
  void append_to(std::vector<float>& values) const;

 private:
  void expect(WireType type) const;
  std::string_view rest_;
  int field_ = 0;
  WireType type_ = WireType::kVarint;
  std::uint64_t number_ = 0;  // value of a varint or fixed field
  std::string_view bytes_;    // bytes of the value
  std::string_view prefix_;   // length prefix of a length-delimited value
};

/// Reads one varint from the front of `bytes`. Throws: ModelError.
std::uint64_t take_varint(std::string_view& bytes);

bool is_utf8(std::string_view text);

/// Appends fields to a message.
class WireWriter {
 public:
  explicit WireWriter(std::string& out) : out_(out) {}

  void varint(int field, std::uint64_t value) {
    tag(field, WireType::kVarint);
    append_varint(value);
  }
  void int64(int field, std::int64_t value) { varint(field, static_cast<std::uint64_t>(value)); }
  void float32(int field, float value) {
    tag(field, WireType::kFixed32);
    const auto bits = std::bit_cast<std::uint32_t>(value);
    out_.append(reinterpret_cast<const char*>(&bits), sizeof bits);
  }
  void bytes(int field, std::string_view value) {
    tag(field, WireType::kBytes);
    append_varint(value.size());
    out_.append(value);
  }
  /// Writes a string; nothing if it is empty.
  void text(int field, std::string_view value) {
    if (!value.empty()) bytes(field, value);
  }
  /// Writes a message whose fields `write(WireWriter&)` appends. Large ones should be last in
  /// `out`: their bytes move when the length is known.
  template <class Write>
  void message(int field, const Write& write) {
    tag(field, WireType::kBytes);
    const std::size_t start = out_.size();
    write(*this);
    const std::string length = encode_varint(out_.size() - start);
    out_.insert(start, length);
  }
  static std::string encode_varint(std::uint64_t value);

 private:
  void tag(int field, WireType type) {
    append_varint(static_cast<std::uint64_t>(field) << 3 | static_cast<std::uint64_t>(type));
  }
  void append_varint(std::uint64_t value);
  std::string& out_;
};

}  // namespace onnxgrad::onnx_io

#endif  // ONNXGRAD_ONNX_WIRE_H_
