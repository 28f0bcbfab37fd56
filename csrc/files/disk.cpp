// SPDX-License-Identifier: BSD-3-Clause
#include "files/disk.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "files/text.h"

namespace baraquant::files {
namespace fs = std::filesystem;
namespace {

constexpr int kMaxLinks = 40;  // as in Linux

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

}  // namespace

File::File(const fs::path& path, int flags)
    : text_(path.string()), descriptor_(::open(text_.c_str(), flags | O_CLOEXEC, 0666)) {
  if (descriptor_ < 0) fail();
}

File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void File::fail() const { fail_system(errno, text_); }

InputFile::InputFile(const fs::path& path) : File(path, O_RDONLY) {
  struct stat status = {};
  if (::fstat(descriptor_, &status) != 0) fail();
  if (S_ISDIR(status.st_mode)) fail_system(EISDIR, text_);
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
  const int result = ::close(descriptor_);
  descriptor_ = -1;
  if (result != 0) fail();
}

void replace_file(const fs::path& path, const std::function<void(OutputFile&)>& write) {
  const fs::path target = behind_links(path);
  const std::string partial = target.string() + "." + std::to_string(::getpid()) + ".partial";
  try {
    if (::unlink(partial.c_str()) != 0 && errno != ENOENT) fail_system(errno, partial);
    OutputFile file(partial);
    struct stat old = {};
    const bool replaces = ::stat(target.c_str(), &old) == 0;
    write(file);
    file.close();
    if (replaces && ::chmod(partial.c_str(), old.st_mode & 07777) != 0) fail_system(errno, partial);
    if (::rename(partial.c_str(), target.c_str()) != 0) fail_system(errno, partial);
  } catch (...) {
    ::unlink(partial.c_str());
    throw;
  }
}

}  // namespace baraquant::files
