// The last stages of dedup(): they write the documents that stay, and list the removed ones.
#include <algorithm>
#include <array>
#include <cstdio>
#include <optional>
#include <utility>

#include "megalith/corpus/dedup_stages.h"
#include "megalith/corpus/output_names.h"
#include "megalith/corpus/staged_file.h"
#include "megalith/data/ordered_work.h"

namespace megalith::corpus {
namespace {

struct FilteredBlock {
  data::DocumentBlock documents;
  std::vector<char> is_removed{};
};

/// Appends the lines of the documents that stay.
void append_kept(const FilteredBlock& block, data::DocumentText& text, std::string& lines) {
  const data::DocumentBlock& all = block.documents;
  for (std::size_t i = 0; i < all.documents.size(); ++i) {
    if (block.is_removed[i] != 0) continue;
    if (all.format == data::CorpusFormat::json_lines) {
      lines += all.documents[i].bytes;
    } else {
      lines += "{\"text\": ";
      data::append_json_string(lines, text.of(all, all.documents[i]));
      lines += '}';
    }
    lines += '\n';
  }
}

/// First record of an ascending file whose document is not below `document`.
std::uint64_t lower_bound(const io::MappedFile& file, std::uint64_t records, std::uint64_t document) {
  const auto* const first = reinterpret_cast<const Removed*>(file.bytes().data());
  return static_cast<std::uint64_t>(
      std::lower_bound(first, first + records, document,
                       [](const Removed& removed, std::uint64_t wanted) { return removed.document < wanted; }) -
      first);
}

/// A name as one field of a list: a tab, a newline and a backslash become \t, \n and \\.
std::string escaped(std::string_view name) {
  std::string text;
  for (const char c : name) {
    if (c == '\t')
      text += "\\t";
    else if (c == '\n')
      text += "\\n";
    else if (c == '\\')
      text += "\\\\";
    else
      text += c;
  }
  return text;
}

std::string ratio(std::uint32_t shared, std::uint32_t either) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.4f\t%u/%u", either == 0 ? 0.0 : static_cast<double>(shared) / either,
                shared, either);
  return text.data();
}

}  // namespace

void DedupStages::require_documents(std::size_t file, std::uint64_t documents) {
  const std::uint64_t counted = bases()[file + 1] - bases()[file];
  if (documents != counted)
    throw InputError(str("[", options_.inputs[file].string(), "] has ", documents, " documents or more, ", counted,
                         " were counted: it was changed since; remove the work folder and start again"));
}

void DedupStages::filter(std::size_t file) {
  const double start = monotonic_s();
  const std::string name = numbered("kept", file);
  work_.remove_leftovers(name);
  const WorkFolder::Product product = work_.open("removed-00000");
  const std::uint64_t base = bases()[file];
  std::uint64_t first = 0, end = 0;
  {
    const io::MappedFile all = fs_.map(product.path);
    first = lower_bound(all, product.records<Removed>(), base);
    end = lower_bound(all, product.records<Removed>(), bases()[file + 1]);
  }
  RecordReader<Removed> removed(fs_, product.path, first, end, kDedupWindow);
  const std::uint64_t num_removed = removed.remaining();
  auto lengths = work_.read<std::uint64_t>(open_with<std::uint64_t>(numbered("documents", file), documents_of(file)),
                                           kDedupWindow);
  std::uint64_t removed_text_bytes = 0, written = 0;
  data::DocumentReader reader(fs_, options_.inputs[file], options_.reading);
  const bool writes = options_.write == DedupOptions::Write::documents;
  std::optional<StagedFile> output;
  if (writes) output.emplace(fs_, unpublished(options_.output / output_name(file, options_.inputs[file])));
  const auto next = [&]() -> std::optional<FilteredBlock> {
    auto documents = reader.next();
    if (!documents || reader.documents() > bases()[file + 1] - base) require_documents(file, reader.documents());
    if (!documents) return std::nullopt;
    FilteredBlock block{std::move(*documents)};
    for (std::size_t i = 0; i < block.documents.documents.size(); ++i, lengths.next()) {
      const bool goes = !removed.at_end() && removed.peek().document == base + block.documents.first + i;
      block.is_removed.push_back(goes ? 1 : 0);
      if (!goes) continue;
      removed_text_bytes += lengths.peek();
      removed.next();
    }
    return block;
  };
  const auto make_worker = [&] {
    return [text = data::DocumentText(options_.key)](const FilteredBlock& block, std::string& lines) mutable {
      lines.clear();
      append_kept(block, text, lines);
    };
  };
  data::work_in_order<std::string>(options_.threads, next, make_worker, [&](const std::string& lines) {
    written += lines.size();
    if (output) output->write(lines);
  });
  if (output) output->publish();
  work_.publish<std::uint64_t>(name, [&](RecordWriter<std::uint64_t>&) {
    return ProductNumbers{num_removed, removed_text_bytes, written, microseconds_since(start)};
  });
}

void DedupStages::write_removed_list() {
  work_.remove_leftovers("listed-00000");
  if (options_.write == DedupOptions::Write::documents) {
    StagedFile list(fs_, unpublished(options_.output / "removed.tsv"));
    list.write(
        "file\tdocument\tkept_file\tkept_document\tkept_similarity\tkept_shingles\tnearest_file\tnearest_document\t"
        "nearest_similarity\tnearest_shingles\n");
    const auto place = [&](std::uint64_t document) {
      const std::size_t file = file_of(document);
      return str(escaped(options_.inputs[file].string()), '\t', document - bases()[file] + 1);
    };
    const WorkFolder::Product product = work_.open("removed-00000");
    for (auto reader = work_.read<Removed>(product, kDedupWindow); !reader.at_end(); reader.next()) {
      const Removed& removed = reader.peek();
      require_numbers(product.path, {removed.document, removed.kept, removed.other});
      list.write(str(place(removed.document), '\t', place(removed.kept), '\t',
                     ratio(removed.kept_shared, removed.kept_either), '\t', place(removed.other), '\t',
                     ratio(removed.shared, removed.either), '\n'));
    }
    list.publish();
  }
  work_.publish<std::uint64_t>("listed-00000", [](RecordWriter<std::uint64_t>&) { return ProductNumbers{}; });
}

}  // namespace megalith::corpus
