#pragma once
#include <functional>
#include <map>
#include <set>
#include <string>

#include <nlohmann/json.hpp>

#include "tests/ops/echo_plans.h"

// The cases of tests/data/echo/echo.json, whoever computes the stages. Every field of what is expected is compared, or
// named as one that no stage shows.

namespace megalith::ops {

using Longs = std::vector<std::int64_t>;

/// Computes single stages of the planner.
class EchoStageSource {
 public:
  virtual ~EchoStageSource() = default;

  /// Of a rank's experts with these counts; `order` is ascending by count.
  struct Spill {
    Longs spill, order;
  };
  virtual Spill spill_of(const Longs& count, std::int64_t avg) const = 0;

  /// What moves from experts to ranks, [experts, ranks], and both in descending order.
  struct Overlaps {
    Longs spill_index, spare_index, by_number;
  };
  virtual Overlaps overlaps_of(const Longs& spill, const Longs& spare) const = 0;

  struct Slots {
    Ints src, cap;
    std::int64_t dropped = 0;
  };
  virtual Slots slots_of(const Longs& spill, const Longs& spare, Index slots_per_rank) const = 0;

  /// Of one expert with `counts` pairs from each source rank, whose slots take `capacity` pairs each, descending.
  struct Shares {
    std::int64_t total = 0;
    Ints take, breadth;  ///< [ranks, slots]
    Ints room;           ///< [slots]
  };
  virtual Shares shares_of(const Ints& counts, const Ints& capacity) const = 0;
};

/// The stages of whole plans that the op makes on a device, for counts in which the numbers of a case occur.
class StagesOfPlans final : public EchoStageSource {
 public:
  explicit StagesOfPlans(Device device) : device_(device) {}
  Spill spill_of(const Longs& count, std::int64_t avg) const override;
  Overlaps overlaps_of(const Longs& spill, const Longs& spare) const override;
  Slots slots_of(const Longs& spill, const Longs& spare, Index slots_per_rank) const override;
  Shares shares_of(const Ints& counts, const Ints& capacity) const override;

 private:
  Device device_;
};

/// Compares a case's "expect" with what follows from its "input".
using EchoCheck = std::function<void(const nlohmann::json& input, const nlohmann::json& expect)>;
/// Those of the planner by op: whole plans and what follows from them on `device`, stages from `source`, which must
/// live as long. "interval_overlap" is not among them: its lists are in another order than a plan's.
std::map<std::string, EchoCheck> echo_checks(const EchoStageSource& source, Device device);
/// Ops whose cases no plan shows: lists in another order, sizes and addresses that the host computes, and graphs.
extern const std::set<std::string> kNotOfPlans;
/// Runs the check of every case. An op that has none and is not `elsewhere` fails. Returns how many cases were checked.
int check_echo_vectors(const std::map<std::string, EchoCheck>& checks, const std::set<std::string>& elsewhere);

/// `got` has every field of `expect` but those in `not_shown`, and with the same value.
void compare(const nlohmann::json& expect, const nlohmann::json& got, const std::set<std::string>& not_shown = {});
nlohmann::json overlap_json(const Longs& spill, const Longs& spare, const EchoStageSource::Overlaps& of);
/// The rows of a matrix [rows, columns].
template <class T>
nlohmann::json matrix(const std::vector<T>& values, Index rows, Index columns) {
  nlohmann::json all = nlohmann::json::array();
  for (Index r = 0; r < rows; ++r) {
    nlohmann::json row = nlohmann::json::array();
    for (Index c = 0; c < columns; ++c) row.push_back(values[static_cast<std::size_t>(r * columns + c)]);
    all.push_back(std::move(row));
  }
  return all;
}

}  // namespace megalith::ops
