// SPDX-License-Identifier: BSD-3-Clause
#include "files/disk.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <random>
#include <system_error>

#include "files/text.h"

namespace baraquant::files {
namespace fs = std::filesystem;
namespace {

constexpr int kMaxLinks = 40;  // as in Linux

// Refuse a folder, and what an open or a read may wait for.
void check_file(const struct stat& status, const std::string& path) {
  if (S_ISREG(status.st_mode)) return;
  if (S_ISDIR(status.st_mode)) fail_system(EISDIR, path);
  C10_THROW_ERROR(Error,
                  c10::str(path, ": expected a file, but it is a pipe, a socket or a device"));
}

// The path behind links, where open() would write, also if nothing is there yet.
fs::path behind_links(const fs::path& path) {
  fs::path target = path;
  std::error_code error;
  for (int i = 0; i < kMaxLinks; ++i) {
    const fs::path link = fs::read_symlink(target, error);
    if (error) return target;
    target = target.parent_path() / link;  // the link itself, if it is absolute
  }
  fail_system(ELOOP, target.string());
}

// The temporary file for a path. Its random digits are the system's: no other writer has them.
fs::path new_partial(const fs::path& target) {
  std::random_device random;
  std::array<char, 17> token = {};
  std::snprintf(token.data(), token.size(), "%08x%08x", random(), random());
  const std::string name = target.filename().string();
  return target.parent_path() / c10::str(".", name, ".", token.data(), ".partial");
}

// Remove the temporary files that killed writers of a path left a day before that of this writer.
void remove_stale(const fs::path& target, const fs::path& partial) try {
  const std::string start = c10::str(".", target.filename().string(), "."), end = ".partial";
  const auto newest = fs::last_write_time(partial) - std::chrono::hours(24);
  for (const auto& entry : fs::directory_iterator(fs::absolute(partial).parent_path())) {
    const std::string name = entry.path().filename().string();
    const bool is_partial = name.size() == start.size() + 16 + end.size() &&
                            name.starts_with(start) && name.ends_with(end);
    if (is_partial && entry.last_write_time() < newest) fs::remove_all(entry.path());
  }
} catch (const fs::filesystem_error&) {
  return;  // what is left over harms nobody, and another writer may be removing it
}

}  // namespace

File::File(const fs::path& path, int flags)
    : text_(path.string()), descriptor_(::open(text_.c_str(), flags | O_CLOEXEC, 0666)) {
  if (descriptor_ < 0) fail();
}

File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void File::fail() const { fail_system(errno, text_); }

// Without O_NONBLOCK a named pipe waits for its writer.
InputFile::InputFile(const fs::path& path) : File(path, O_RDONLY | O_NONBLOCK) {
  struct stat status = {};
  if (::fstat(descriptor_, &status) != 0) fail();
  check_file(status, text_);
  size_ = status.st_size;
}

size_t InputFile::read(int64_t place, void* data, size_t size) const {
  size_t done = 0;
  while (done < size) {
    const ssize_t count = ::pread(descriptor_, static_cast<char*>(data) + done, size - done,
                                  place + static_cast<int64_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail();
    if (count == 0) break;
    done += static_cast<size_t>(count);
  }
  return done;
}

OutputFile::OutputFile(const fs::path& path) : File(path, O_WRONLY | O_CREAT | O_EXCL) {}

void OutputFile::write(const void* data, size_t size) {
  const auto* bytes = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t count = ::write(descriptor_, bytes, size);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail();
    bytes += count;
    size -= static_cast<size_t>(count);
  }
}

void OutputFile::close() {
  if (::fsync(descriptor_) != 0) fail();
  const int result = ::close(descriptor_);
  descriptor_ = -1;
  if (result != 0) fail();
}

void replace_file(const fs::path& path, const std::function<void(OutputFile&)>& write) {
  const fs::path target = behind_links(path);
  struct stat old = {};
  const bool replaces = ::stat(target.c_str(), &old) == 0;
  if (replaces) check_file(old, target.string());
  const std::string partial = new_partial(target).string();
  OutputFile file(partial);
  try {
    remove_stale(target, partial);
    write(file);
    if (replaces && ::chmod(partial.c_str(), old.st_mode & 07777) != 0) fail_system(errno, partial);
    file.close();
    if (::rename(partial.c_str(), target.c_str()) != 0) fail_system(errno, partial);
  } catch (...) {
    ::unlink(partial.c_str());
    throw;
  }
}

}  // namespace baraquant::files
