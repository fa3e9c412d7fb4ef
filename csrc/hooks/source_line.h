// The user's source line that runs on the calling thread: the innermost Python frame that is neither torch's nor ours.
#pragma once

#include <torch/csrc/python_headers.h>

#include <cstdint>
#include <string>
#include <vector>

namespace nanscan {

// Id of the line, 0 when no Python frame runs on this thread. Takes the GIL if it has to; about 0.3 us.
uint32_t capture_line();

// "path.py:12", "" for 0.
std::string line_text(uint32_t id);

// Folders whose frames are passed over (torch's and nanscan's), with a trailing separator.
void set_library_folders(std::vector<std::string> folders);

}  // namespace nanscan
