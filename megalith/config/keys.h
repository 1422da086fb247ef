#pragma once
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "megalith/base/problems.h"
#include "megalith/base/types.h"

namespace megalith::config {

struct RunConfig;
struct RunPlan;

/// The member of RunConfig that holds the value from the recipe.
using AskedValue =
    std::variant<std::optional<Index>*, std::optional<double>*, std::optional<bool>*, std::optional<std::string>*,
                 std::optional<std::vector<Index>>*, std::optional<std::vector<std::string>>*>;

/// The value as messages print it; "unset" if there is none.
std::string value_text(const AskedValue& value);
inline bool is_set(const AskedValue& value) {
  return std::visit([](const auto* place) { return place->has_value(); }, value);
}

/// Access to the members of a RunConfig and a RunPlan (key_members.h makes these).
struct KeyMembers {
  AskedValue (*asked)(RunConfig&);
  void (*put)(const RunConfig&, RunPlan&);  ///< from the recipe into the plan; nullptr: resolve() derives it
  void (*get)(const RunPlan&, RunConfig&);  ///< back; nullptr: not part of a plan
};

/// The value of a key that a recipe leaves out.
struct KeyDefault {
  std::string_view literal;  ///< as in a recipe; empty: resolve() derives the value, or it stays unset
  std::string_view words;    ///< for docs/recipe.md, if there is no literal
};

/// The legal values of a key, whatever the other keys are. A number must lie between `min` and `max`. A text must be
/// one of `choices`, if there are any. Each integer of a list must lie in the range.
struct Bounds {
  double min = -std::numeric_limits<double>::infinity(), max = std::numeric_limits<double>::infinity();
  bool is_above = false, is_below = false;  ///< min and max themselves are not legal
  std::span<const std::string_view> choices = {};
  std::string_view note = {};  ///< the reason, or the meaning of a value
  /// Of a text: what it must be if no name of `choices` is meant; a recipe may also write a number.
  std::string_view (*text_rule)(const std::string&) = nullptr;

  /// The rule that a value breaks, with the nearest name if there are choices; "" if it breaks none. Reals must be
  /// finite.
  std::string broken_by(Index value) const;
  std::string broken_by(double value) const;
  std::string broken_by(const std::string& value) const;
};
/// Integers without their own upper bound fit an int, so no product of two of them overflows while rules are checked.
inline constexpr double kMaxInteger = std::numeric_limits<int>::max();

/// Whether a run may resume from a checkpoint that was saved with another value.
enum class OnResume : std::uint8_t { must_match, may_change, warns };

/// Has no default: a key without a rule does not compile.
struct ResumeRule {
  constexpr ResumeRule(OnResume on_resume,  // NOLINT(google-explicit-constructor): a row has just the rule
                       std::string_view of_change = "results differ from an uninterrupted run",
                       bool (*applies_to)(const RunPlan&, const RunConfig& saved) = nullptr)
      : rule(on_resume), consequence(of_change), applies(applies_to) {}
  OnResume rule;
  std::string_view consequence;  ///< of a change, for `warns`
  /// Whether a change from the checkpoint's recipe to the plan causes a warning; nullptr: always.
  bool (*applies)(const RunPlan&, const RunConfig& saved);
};

/// Whether all processes of a job must have the same value. The contents of files that paths name are compared
/// separately.
enum class RanksMay : std::uint8_t { not_differ, differ };

/// A row of the table of keys: everything about one key.
struct Key {
  std::string_view name;  ///< "model.num_layers"
  KeyMembers members;
  KeyDefault fallback;
  Bounds bounds;
  ResumeRule resume;
  RanksMay ranks_may;
  std::string_view meaning;                        ///< for docs/recipe.md
  bool (*is_in_recipe)(const RunPlan&) = nullptr;  ///< plans whose recipe has the key; nullptr: all
};

/// The one table of keys. Parsing, --set, printing, defaults, bounds, the nearest-name search, the check on resume, the
/// agreement of ranks and docs/recipe.md read it. A new key needs a member of RunConfig, a member of RunPlan where the
/// code that uses it reads it, and a row.
std::span<const Key> keys();
/// nullptr: no key has this name.
const Key* find_key(std::string_view name);

/// Sections in the order of the table: "model", "parallel", ...
std::vector<std::string_view> key_sections();
/// The keys of a section in the form of docs/recipe.md.
std::string key_table(std::string_view section);

/// Keys whose values broke their bounds, or have the wrong type.
struct BrokenKeys {
  std::vector<std::string_view> names;
  /// Whether one of them begins with `prefix`.
  bool any(std::string_view prefix) const;
  bool has(std::string_view name) const;
  /// Adds the lines of `from` that name none of these keys.
  void add_others(const Problems& from, Problems& to) const;
};
/// Sets unset members that have a literal default.
void fill_defaults(RunConfig& config);
/// What value_text() gives for a recipe that lacks the key and is resolved: its default, or "unset".
std::string default_text(const Key& key);
/// Checks the bounds of a key, if it has a value and is not broken yet. A value that breaks them is reported, and
/// replaced by the default or the nearest legal value, so that the rules of other keys can be checked.
void check_bounds(const Key& key, RunConfig& config, BrokenKeys& broken, Problems& out);

/// Reports every set key of a section ("moe.") under the rule, and unsets it.
void refuse_section(std::string_view section, const std::string& rule, RunConfig& config, Problems& out);

/// A key whose value in a plan differs from that in the recipe of a checkpoint.
struct KeyChange {
  const Key* key;
  std::string was, is;
};
/// In the order of the table. For a key that the checkpoint's version did not have, the default counts.
std::vector<KeyChange> changed_keys(RunConfig saved, const RunPlan& plan);

/// Lines of an error, and of warnings: "train.seed = 5: the checkpoint was trained with 3".
struct ResumeChanges {
  std::vector<std::string> refused, warned;
};
/// The changed keys, by the rule of each.
ResumeChanges resume_changes(const RunConfig& saved, const RunPlan& plan);

/// The warning for a run with the decay `wsd` that resumes with another train.steps or optimizer.decay_steps, after the
/// decay has begun in the old or the new curve: some of its completed steps then had other learning rates. Empty before
/// that: the stable phase may be made longer or shorter. `updates`: those of the checkpoint of `step`.
std::string wsd_change(const RunConfig& saved, const RunPlan& plan, Index step, Index updates);

/// Keys that must match on resume, and their values: they identify a run.
std::vector<std::pair<std::string_view, std::string>> identity_of(const RunPlan& plan);

}  // namespace megalith::config
