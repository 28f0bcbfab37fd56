// SPDX-License-Identifier: BSD-3-Clause
// Files on the disk. Errors name the path and what the system says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

namespace baraquant::files {

// A file that is read.
class InputFile {
 public:
  // Throws c10::Error: it does not exist, or is a folder.
  explicit InputFile(const std::filesystem::path& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  // Its size when it was opened.
  int64_t size() const { return size_; }
  // Read up to `size` bytes from a place on; returns how many there were.
  size_t read(int64_t place, void* data, size_t size) const;

 private:
  std::string text_;
  int descriptor_;
  int64_t size_;
};

// A file that is written.
class OutputFile {
 public:
  // Throws c10::Error: it exists, or cannot be written.
  explicit OutputFile(const std::filesystem::path& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(const void* data, size_t size);
  // Close it. Throws c10::Error: something is not on the disk.
  void close();

 private:
  std::string text_;
  int descriptor_;
};

// Let `write` write a temporary file, which then replaces `path`: the file appears whole or not at
// all, with the permissions of the file that it replaces, or those that open() would give it.
void replace_file(const std::filesystem::path& path, const std::function<void(OutputFile&)>& write);

}  // namespace baraquant::files
