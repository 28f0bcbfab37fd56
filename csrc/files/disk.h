// SPDX-License-Identifier: BSD-3-Clause
// Files on the disk. Errors name the path and what the system says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

namespace baraquant::files {

// An open file, which is closed at last.
class File {
 public:
  File(const File&) = delete;
  File& operator=(const File&) = delete;

 protected:
  // Throws c10::Error: it cannot be opened in this way.
  File(const std::filesystem::path& path, int flags);
  ~File();
  [[noreturn]] void fail() const;  // what the system says

  std::string text_;
  int descriptor_;
};

// A file that is read.
class InputFile : public File {
 public:
  // Throws c10::Error: it does not exist, or is a folder, a named pipe or a device.
  explicit InputFile(const std::filesystem::path& path);

  // Its size when it was opened.
  int64_t size() const { return size_; }
  // Read up to `size` bytes from a place on; returns how many there were.
  size_t read(int64_t place, void* data, size_t size) const;

 private:
  int64_t size_;
};

// A file that is written.
class OutputFile : public File {
 public:
  // Throws c10::Error: it exists, or cannot be written.
  explicit OutputFile(const std::filesystem::path& path);

  void write(const void* data, size_t size);
  // Close it when all of it is on the disk. Throws c10::Error: it is not.
  void close();
};

// Let `write` write a temporary file, which then replaces `path`: the file appears whole or not at
// all, with the permissions of the file that it replaces, or those that open() would give it. Its
// name has random digits of its own: threads, processes and containers may write to one path. A
// writer that is killed leaves it; one that comes a day later removes it. Python does the same
// (baraquant/workflow/serialization/disk.py).
//
// Throws c10::Error: it cannot be written, or `path` is a folder, a named pipe or a device.
void replace_file(const std::filesystem::path& path, const std::function<void(OutputFile&)>& write);

}  // namespace baraquant::files
