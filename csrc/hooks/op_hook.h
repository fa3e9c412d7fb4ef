// The dispatcher observer: every op and every autograd node, without Python and mostly without the GIL. One session at a
// time is observed (the callbacks are the process's).
#pragma once

#include <memory>

#include "hooks/session.h"
#include "record/call_record.h"

namespace nanscan {

// Begin / end observing for `session`. start() returns false when another session is being observed.
bool start_observing(const std::shared_ptr<Session>& session);
void stop_observing(const Session& session);
bool observing(const Session& session);

}  // namespace nanscan
