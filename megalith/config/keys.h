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

/// Where a RunConfig holds the value that was asked for.
using AskedValue =
    std::variant<std::optional<Index>*, std::optional<double>*, std::optional<bool>*, std::optional<std::string>*,
                 std::optional<std::vector<Index>>*, std::optional<std::vector<std::string>>*>;

/// The value as messages show it; "unset" where there is none.
std::string value_text(const AskedValue& value);

/// How a RunConfig and a RunPlan are reached (key_members.h makes these).
struct KeyMembers {
  AskedValue (*asked)(RunConfig&);
  void (*put)(const RunConfig&, RunPlan&);  ///< what was asked into the plan; nullptr: resolve() derives it
  void (*get)(const RunPlan&, RunConfig&);  ///< back; nullptr: no part of a plan
};

/// The value of a key that a recipe leaves out.
struct KeyDefault {
  std::string_view literal;  ///< as a recipe writes it; empty: resolve() derives the value, or it stays unset
  std::string_view words;    ///< of docs/recipe.md, where there is no literal
};

/// What a value must be, whatever the other keys say. A number lies between `least` and `most`, a text is one of
/// `choices` where there are any, of a list of integers each one lies in the range.
struct Bounds {
  double least = -std::numeric_limits<double>::infinity(), most = std::numeric_limits<double>::infinity();
  bool is_above = false, is_below = false;  ///< least, most themselves are not allowed
  std::span<const std::string_view> choices = {};
  std::string_view note = {};  ///< why, or what a value stands for

  /// The rule that a value breaks, and the nearest name where one was meant; "" when it breaks none. Reals must be
  /// finite.
  std::string broken_by(Index value) const;
  std::string broken_by(double value) const;
  std::string broken_by(const std::string& value) const;
};
/// Integers without an upper bound of their own fit an int, so that no product of two of them overflows while rules
/// are checked.
inline constexpr double kMaxInteger = std::numeric_limits<int>::max();

/// Whether a run may go on from a checkpoint that was saved with another value.
enum class OnResume : std::uint8_t { must_match, may_change, warns };

/// Has no default: a key without a rule does not compile.
struct ResumeRule {
  constexpr ResumeRule(OnResume on_resume,  // NOLINT(google-explicit-constructor): a row says just the rule
                       std::string_view of_change = "results differ from an uninterrupted run",
                       bool (*applies_to)(const RunPlan&) = nullptr)
      : rule(on_resume), consequence(of_change), applies(applies_to) {}
  OnResume rule;
  std::string_view consequence;     ///< of `warns`
  bool (*applies)(const RunPlan&);  ///< plans whose change is warned of; nullptr: all
};

/// Whether all processes of a job must have the same value. What lies where their paths lead is compared itself.
enum class RanksMay : std::uint8_t { not_differ, differ };

/// A row of the table of keys: all that there is to say of one.
struct Key {
  std::string_view name;  ///< "model.num_layers"
  KeyMembers members;
  KeyDefault fallback;
  Bounds bounds;
  ResumeRule resume;
  RanksMay ranks_may;
  std::string_view meaning;                        ///< for docs/recipe.md
  bool (*is_in_recipe)(const RunPlan&) = nullptr;  ///< plans that have the key in their recipe; nullptr: all
};

/// The one table of keys. Parsing, --set, printing, defaults, bounds, the nearest-name search, the check on resume, the
/// agreement of ranks and docs/recipe.md read it. A new key is a member of RunConfig, one of the RunPlan where the code
/// that uses it finds it, and a row.
std::span<const Key> keys();
/// nullptr: no key has this name.
const Key* find_key(std::string_view name);

/// Sections in the order of the table: "model", "parallel", ...
std::vector<std::string_view> key_sections();
/// The keys of a section as docs/recipe.md shows them.
std::string key_table(std::string_view section);

/// Keys whose values broke their bounds.
struct BrokenKeys {
  std::vector<std::string_view> names;
  /// Whether there is one that begins so.
  bool any(std::string_view prefix) const;
};
/// Sets what is unset and has a literal default.
void fill_defaults(RunConfig& config);
/// Checks the bounds of a key, if it has a value. A value that breaks them is reported and replaced: by the default, or
/// the nearest that is legal, so that other keys' rules can be checked.
void check_bounds(const Key& key, RunConfig& config, BrokenKeys& broken, Problems& out);

/// A key that a plan has with another value than the recipe of a checkpoint.
struct KeyChange {
  const Key* key;
  std::string was, is;
};
/// In the order of the table. Of a key that the checkpoint's version did not have yet, the default counts.
std::vector<KeyChange> changed_keys(RunConfig saved, const RunPlan& plan);

/// Lines of an error and of warnings: "train.seed = 5: the checkpoint was trained with 3".
struct ResumeChanges {
  std::vector<std::string> refused, warned;
};
/// The changed keys, by the rule of each.
ResumeChanges resume_changes(const RunConfig& saved, const RunPlan& plan);

/// Keys that must match on resume, and their values: what tells one run from another.
std::vector<std::pair<std::string_view, std::string>> identity_of(const RunPlan& plan);

}  // namespace megalith::config
