#include "train/data/byte_stream.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "onnxgrad/error.h"

namespace onnxgrad::train {
namespace {

using base::ReadableFile;

constexpr const char* kDamagedFile = "The file is damaged or truncated: write or fetch it again.";

[[noreturn]] void refuse_file(const ReadableFile& file, const std::string& what,
                              const std::string& member = {}, Hint hint = kDamagedFile) {
  throw DataError(
      {.what = what, .where = {.file = file.path(), .value = member}, .hint = std::move(hint)});
}

class FilePart final : public ByteStream {
 public:
  FilePart(std::shared_ptr<const ReadableFile> file, std::int64_t offset, std::int64_t bytes)
      : file_(std::move(file)), offset_(offset), bytes_(bytes) {
    const std::int64_t size = file_->size_bytes();
    if (offset < 0 || bytes < 0 || offset > size || bytes > size - offset) {
      refuse_file(*file_, "a part of the file is outside it");
    }
  }
  std::int64_t size_bytes() const override { return bytes_; }
  bool has_random_access() const override { return true; }
  void read(std::int64_t offset, std::span<std::byte> out) override {
    if (offset < 0 || std::ssize(out) > bytes_ || offset > bytes_ - std::ssize(out)) {
      refuse_file(*file_, "the file ends before its data");
    }
    file_->read(offset_ + offset, out);
  }

 private:
  std::shared_ptr<const ReadableFile> file_;
  std::int64_t offset_;
  std::int64_t bytes_;
};

// Reads forwards; seeking backwards starts over.
class DeflatedPart final : public ByteStream {
 public:
  DeflatedPart(std::shared_ptr<const ReadableFile> file, std::int64_t offset, ZipMember member)
      : file_(std::move(file)),
        packed_(file_, offset, member.stored_bytes),
        member_(std::move(member)),
        input_(kPieceBytes) {
    if (inflateInit2(&stream_, -MAX_WBITS) != Z_OK) {
      throw DeviceError({.what = "no memory for decompression",
                         .where = {.file = file_->path()},
                         .hint = "Free memory, or write the arrays with numpy.savez."});
    }
  }
  DeflatedPart(const DeflatedPart&) = delete;
  DeflatedPart& operator=(const DeflatedPart&) = delete;
  ~DeflatedPart() override { inflateEnd(&stream_); }

  std::int64_t size_bytes() const override { return member_.bytes; }
  bool has_random_access() const override { return false; }
  void read(std::int64_t offset, std::span<std::byte> out) override {
    if (offset < 0 || std::ssize(out) > member_.bytes || offset > member_.bytes - std::ssize(out)) {
      refuse_file(*file_, "the array ends before its data", member_.name);
    }
    if (offset < position_) rewind();
    std::byte skipped[4096];
    while (position_ < offset) {
      const auto step = std::min<std::int64_t>(offset - position_, sizeof skipped);
      unpack(std::span(skipped).first(static_cast<std::size_t>(step)));
    }
    unpack(out);
  }

 private:
  static constexpr std::size_t kPieceBytes = std::size_t{1} << 16;

  void rewind() {
    inflateReset(&stream_);
    stream_.avail_in = 0;
    read_ = position_ = 0;
    checksum_ = 0;
  }

  void unpack(std::span<std::byte> out) {
    constexpr std::size_t kMost = std::size_t{1} << 30;  // zlib counts in unsigned int
    while (!out.empty()) {
      const auto part = out.first(std::min(out.size(), kMost));
      unpack_part(part);
      out = out.subspan(part.size());
    }
  }

  void unpack_part(std::span<std::byte> out) {
    stream_.next_out = reinterpret_cast<Bytef*>(out.data());
    stream_.avail_out = static_cast<uInt>(out.size());
    while (stream_.avail_out > 0) {
      if (stream_.avail_in == 0) refill();
      const int state = inflate(&stream_, Z_NO_FLUSH);
      if (state == Z_STREAM_END && stream_.avail_out == 0) break;
      if (state != Z_OK) refuse_file(*file_, "the compressed array is corrupt", member_.name);
    }
    position_ += std::ssize(out);
    checksum_ = static_cast<std::uint32_t>(::crc32(
        checksum_, reinterpret_cast<const Bytef*>(out.data()), static_cast<uInt>(out.size())));
    if (position_ == member_.bytes && checksum_ != member_.crc32) {
      refuse_file(*file_, "the checksum of the array differs from that in the archive",
                  member_.name);
    }
  }

  void refill() {
    const std::int64_t count = std::min<std::int64_t>(kPieceBytes, packed_.size_bytes() - read_);
    if (count == 0) refuse_file(*file_, "the compressed array ends before its data", member_.name);
    packed_.read(read_, std::span(input_).first(static_cast<std::size_t>(count)));
    read_ += count;
    stream_.next_in = reinterpret_cast<Bytef*>(input_.data());
    stream_.avail_in = static_cast<uInt>(count);
  }

  std::shared_ptr<const ReadableFile> file_;
  FilePart packed_;
  ZipMember member_;
  std::vector<std::byte> input_;
  z_stream stream_{};
  std::int64_t read_ = 0;      // compressed bytes
  std::int64_t position_ = 0;  // decompressed bytes
  std::uint32_t checksum_ = 0;
};

template <class T>
T number_at(std::span<const std::byte> bytes, std::size_t offset) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    value |= std::to_integer<std::uint64_t>(bytes[offset + i]) << (8 * i);
  }
  return static_cast<T>(value);
}

std::vector<std::byte> bytes_of(const ReadableFile& file, std::int64_t offset, std::int64_t count) {
  if (offset < 0 || count < 0 || offset > file.size_bytes() || count > file.size_bytes() - offset) {
    refuse_file(file, "the zip archive refers to positions outside the file");
  }
  std::vector<std::byte> bytes(static_cast<std::size_t>(count));
  file.read(offset, bytes);
  return bytes;
}

struct Directory {
  std::int64_t offset = 0;
  std::int64_t bytes = 0;
  std::int64_t members = 0;
};

// From the record at the end of the file, or the zip64 record that it points to.
Directory find_directory(const ReadableFile& file) {
  constexpr std::int64_t kEndBytes = 22;
  constexpr std::int64_t kLongestComment = 65535;
  const std::int64_t size = file.size_bytes();
  const std::int64_t tail = std::min(size, kEndBytes + kLongestComment);
  const auto bytes = bytes_of(file, size - tail, tail);
  for (std::int64_t at = tail - kEndBytes; at >= 0; --at) {
    const auto place = static_cast<std::size_t>(at);
    if (number_at<std::uint32_t>(bytes, place) != 0x06054B50) continue;
    Directory found{.offset = number_at<std::uint32_t>(bytes, place + 16),
                    .bytes = number_at<std::uint32_t>(bytes, place + 12),
                    .members = number_at<std::uint16_t>(bytes, place + 10)};
    const bool is_long =
        found.offset == 0xFFFFFFFF || found.bytes == 0xFFFFFFFF || found.members == 0xFFFF;
    if (!is_long) return found;
    const std::int64_t locator_at = size - tail + at - 20;
    const auto locator = bytes_of(file, locator_at, 20);
    if (number_at<std::uint32_t>(locator, 0) != 0x07064B50) break;
    const auto record = bytes_of(file, number_at<std::int64_t>(locator, 8), 56);
    if (number_at<std::uint32_t>(record, 0) != 0x06064B50) break;
    return {.offset = number_at<std::int64_t>(record, 48),
            .bytes = number_at<std::int64_t>(record, 40),
            .members = number_at<std::int64_t>(record, 32)};
  }
  refuse_file(file, "this is not a zip archive (an .npz file is one), or it is truncated");
}

// Sizes of 4 GiB and more are in an extra field.
void read_zip64(std::span<const std::byte> extra, ZipMember& member) {
  constexpr std::int64_t kElsewhere = 0xFFFFFFFF;
  while (extra.size() >= 4) {
    const auto id = number_at<std::uint16_t>(extra, 0);
    const std::size_t length = number_at<std::uint16_t>(extra, 2);
    if (length > extra.size() - 4) return;
    if (id == 1) {
      std::size_t at = 4;
      for (std::int64_t* field : {&member.bytes, &member.stored_bytes, &member.offset}) {
        if (*field != kElsewhere || at + 8 > 4 + length) continue;
        *field = number_at<std::int64_t>(extra, at);
        at += 8;
      }
      return;
    }
    extra = extra.subspan(4 + length);
  }
}

}  // namespace

std::unique_ptr<ByteStream> file_part(std::shared_ptr<const ReadableFile> file, std::int64_t offset,
                                      std::int64_t bytes) {
  return std::make_unique<FilePart>(std::move(file), offset, bytes);
}

std::vector<ZipMember> list_zip(const ReadableFile& file) {
  constexpr std::size_t kRecordBytes = 46;
  const Directory directory = find_directory(file);
  const auto bytes = bytes_of(file, directory.offset, directory.bytes);
  std::span<const std::byte> rest = bytes;
  std::vector<ZipMember> members;
  for (std::int64_t i = 0; i < directory.members; ++i) {
    if (rest.size() < kRecordBytes || number_at<std::uint32_t>(rest, 0) != 0x02014B50) {
      refuse_file(file, "the directory of the zip archive is corrupt");
    }
    const std::size_t name_bytes = number_at<std::uint16_t>(rest, 28);
    const std::size_t extra_bytes = number_at<std::uint16_t>(rest, 30);
    const std::size_t comment_bytes = number_at<std::uint16_t>(rest, 32);
    const std::size_t total = kRecordBytes + name_bytes + extra_bytes + comment_bytes;
    if (total > rest.size()) refuse_file(file, "the directory of the zip archive is corrupt");
    ZipMember member{
        .name = std::string(reinterpret_cast<const char*>(rest.data()) + kRecordBytes, name_bytes),
        .is_deflated = number_at<std::uint16_t>(rest, 10) != 0,
        .offset = number_at<std::uint32_t>(rest, 42),
        .stored_bytes = number_at<std::uint32_t>(rest, 20),
        .bytes = number_at<std::uint32_t>(rest, 24),
        .crc32 = number_at<std::uint32_t>(rest, 16)};
    read_zip64(rest.subspan(kRecordBytes + name_bytes, extra_bytes), member);
    if ((number_at<std::uint16_t>(rest, 8) & 1) != 0) {
      refuse_file(file, "it is encrypted", member.name, "Write the archive without a password.");
    }
    const auto method = number_at<std::uint16_t>(rest, 10);
    if (method != 0 && method != 8) {
      refuse_file(file, fmt::format("compression method {} is not supported, only deflate", method),
                  member.name, "Write it with numpy.savez or numpy.savez_compressed.");
    }
    if (!member.is_deflated && member.stored_bytes != member.bytes) {
      refuse_file(file, "a stored array has two sizes", member.name);
    }
    members.push_back(std::move(member));
    rest = rest.subspan(total);
  }
  return members;
}

std::unique_ptr<ByteStream> open_zip_member(std::shared_ptr<const ReadableFile> file,
                                            const ZipMember& member) {
  constexpr std::int64_t kHeaderBytes = 30;
  const auto header = bytes_of(*file, member.offset, kHeaderBytes);
  if (number_at<std::uint32_t>(header, 0) != 0x04034B50) {
    refuse_file(*file, "its header in the zip archive is corrupt", member.name);
  }
  const std::int64_t begin = member.offset + kHeaderBytes + number_at<std::uint16_t>(header, 26) +
                             number_at<std::uint16_t>(header, 28);
  constexpr std::int64_t kMostInflated = 1032;  // bytes that deflate makes of one
  if (member.bytes < 0 || member.stored_bytes < 0 ||
      (member.is_deflated && member.bytes / kMostInflated > member.stored_bytes)) {
    refuse_file(*file, "its size in the zip archive is corrupt", member.name);
  }
  if (!member.is_deflated) return file_part(std::move(file), begin, member.bytes);
  return std::make_unique<DeflatedPart>(std::move(file), begin, member);
}

void check_stored_member(const std::shared_ptr<const ReadableFile>& file, const ZipMember& member) {
  const auto bytes = open_zip_member(file, member);
  std::vector<std::byte> piece(std::size_t{1} << 16);
  uLong checksum = 0;
  for (std::int64_t offset = 0; offset < member.bytes; offset += std::ssize(piece)) {
    const auto count = std::min<std::int64_t>(std::ssize(piece), member.bytes - offset);
    const auto part = std::span(piece).first(static_cast<std::size_t>(count));
    bytes->read(offset, part);
    checksum = ::crc32(checksum, reinterpret_cast<const Bytef*>(part.data()),
                       static_cast<uInt>(part.size()));
  }
  if (checksum != member.crc32) {
    refuse_file(*file, "the checksum of the array differs from that in the archive", member.name);
  }
}

}  // namespace onnxgrad::train
