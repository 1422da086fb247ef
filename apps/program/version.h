#pragma once

namespace megalith::apps {

/// "megalith 0.1.0, commit 0123abc". " with changes" follows if tracked files differed from the commit at the build.
/// "unknown commit" if it was built outside of a checkout.
const char* version();

}  // namespace megalith::apps
