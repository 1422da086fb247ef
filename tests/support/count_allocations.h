#pragma once

namespace megalith::support {

/// Counts operator new on the calling thread while it lives. oneDNN's own allocations are exempt.
/// Works in a test program that links tests/support/count_allocations.cpp, which replaces operator new.
class CountAllocations {
 public:
  CountAllocations();
  ~CountAllocations();
  CountAllocations(const CountAllocations&) = delete;
  CountAllocations& operator=(const CountAllocations&) = delete;
  long count() const;
};

}  // namespace megalith::support
