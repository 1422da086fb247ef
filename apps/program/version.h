#pragma once

namespace megalith::apps {

/// "megalith 0.1.0, commit 0123abc", with " with changes" where tracked files differed from the commit when the program
/// was built; "unknown commit" where it was built outside of a checkout.
const char* version();

}  // namespace megalith::apps
