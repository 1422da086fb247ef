#include "megalith/tokenizer/bpe_vocabulary.h"

#include <algorithm>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/philox.h"
#include "megalith/base/str.h"
#include "megalith/tokenizer/byte_level_bpe.h"
#include "megalith/tokenizer/long_word.h"

#include "tests/io/temp_dir.h"
#include "tests/tokenizer/tokenizers.h"

namespace megalith::tokenizer {
namespace {

/// The character that stands for a byte in the vocabulary files.
std::string spelling_of(int byte) {
  int character = byte;
  const auto visible = [](int b) { return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174; };
  if (!visible(byte)) {
    character = 256;
    for (int b = 0; b < byte; ++b) character += visible(b) ? 0 : 1;
  }
  if (character < 0x80) return {static_cast<char>(character)};
  return {static_cast<char>(0xC0 | character >> 6), static_cast<char>(0x80 | (character & 0x3F))};
}

/// The 256 bytes, "<|endoftext|>" and these tokens.
nlohmann::ordered_json small_vocabulary(const std::vector<std::string>& tokens) {
  nlohmann::ordered_json vocabulary;
  for (int byte = 0; byte < 256; ++byte) vocabulary[spelling_of(byte)] = byte;
  vocabulary["<|endoftext|>"] = 256;
  for (const std::string& token : tokens) vocabulary[token] = vocabulary.size();
  return vocabulary;
}

struct BpeFiles {
  TempDir dir;
  BpeFiles(const std::string& json, const std::string& merges) {
    write_all(dir / "vocab.json", json);
    write_all(dir / "merges.txt", merges);
  }
  BpeVocabulary load() const { return load_bpe_vocabulary(*io::posix_fs(), dir.path()); }
  std::string error(const std::string& file) const {
    std::string text = error_of<InputError>([&] { load(); });
    const std::string where = str("[", (dir / file).string(), "] ");
    EXPECT_TRUE(text.starts_with(where)) << text;
    return text.substr(std::min(where.size(), text.size()));
  }
};

TEST(BpeVocabulary, MergesInRankOrder) {
  const BpeFiles files(small_vocabulary({"ab", "bc", "abc"}).dump(), "#version: 0.2\r\nb c\r\na b\r\na bc\r\n");
  const ByteLevelBpe tokenizer(files.load());
  EXPECT_EQ(tokenizer.encode("abc"), (std::vector<std::int32_t>{259}));
  EXPECT_EQ(tokenizer.encode("abab"), (std::vector<std::int32_t>{257, 257}));
  EXPECT_EQ(tokenizer.encode("bcb"), (std::vector<std::int32_t>{258, 'b'}));
  EXPECT_EQ(tokenizer.vocab_size(), 260);
}

TEST(BpeVocabulary, HashIsOfTheContents) {
  const std::string json = small_vocabulary({"ab", "bc"}).dump();
  const std::uint64_t hash = BpeFiles(json, "a b\nb c\n").load().content_hash;
  EXPECT_EQ(BpeFiles(small_vocabulary({"ab", "bc"}).dump(2), "#version: 0.2\na b\r\nb c").load().content_hash, hash);
  EXPECT_NE(BpeFiles(json, "b c\na b\n").load().content_hash, hash);
  EXPECT_NE(BpeFiles(small_vocabulary({"bc", "ab"}).dump(), "a b\nb c\n").load().content_hash, hash);
}

/// A tokenizer.json with these tokens and merges.
nlohmann::ordered_json whole_file(const std::vector<std::string>& tokens, const std::string& merges) {
  return {{"version", "1.0"},
          {"added_tokens", {{{"id", 256}, {"content", "<|endoftext|>"}, {"special", true}}}},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
          {"model",
           {{"type", "BPE"}, {"vocab", small_vocabulary(tokens)}, {"merges", nlohmann::ordered_json::parse(merges)}}}};
}

TEST(BpeVocabulary, ReadsTokenizerJson) {
  const std::uint64_t hash = BpeFiles(small_vocabulary({"ab", "bc"}).dump(), "a b\nb c\n").load().content_hash;
  const TempDir dir;
  const auto load = [&](const nlohmann::ordered_json& file) {
    write_all(dir / "tokenizer.json", file.dump());
    return load_bpe_vocabulary(*io::posix_fs(), dir.path());
  };
  EXPECT_EQ(load(whole_file({"ab", "bc"}, R"(["a b", "b c"])")).content_hash, hash);
  EXPECT_EQ(load(whole_file({"ab", "bc"}, R"([["a", "b"], ["b", "c"]])")).content_hash, hash) << "merges as pairs";
  auto added = whole_file({"ab", "bc"}, R"(["a b", "b c"])");
  added["model"]["vocab"].erase("<|endoftext|>");
  EXPECT_EQ(load(added).content_hash, hash) << "the end of text among the added tokens only";

  const auto error = [&](const nlohmann::ordered_json& file) { return error_of<InputError>([&] { load(file); }); };
  const std::string where = str("[", (dir / "tokenizer.json").string(), "] ");
  EXPECT_EQ(error(whole_file({"ab"}, R"(["a b", 7])")),
            where + "model.merges[1] = 7: must be \"LEFT RIGHT\" or [\"LEFT\", \"RIGHT\"]");
  EXPECT_NE(error(whole_file({"ab"}, R"(["a c"])")).find("the token that it makes is not in the vocabulary"),
            std::string::npos);
  auto untyped = whole_file({"ab", "bc"}, R"(["a b", "b c"])");
  untyped["model"].erase("type");
  EXPECT_EQ(load(untyped).content_hash, hash) << "as GPT-2's own file";
  EXPECT_EQ(error({{"model", 3}}), where + "model.type = null: must be \"BPE\"");
  EXPECT_NE(error(nlohmann::ordered_json::array()).find("must be a JSON object"), std::string::npos);
}

TEST(BpeVocabulary, DoesAsTokenizerJsonSays) {
  const TempDir dir;
  const auto load = [&](const nlohmann::ordered_json& file) {
    write_all(dir / "tokenizer.json", file.dump());
    return ByteLevelBpe(load_bpe_vocabulary(*io::posix_fs(), dir.path()));
  };
  using WholeIds = std::vector<std::int32_t>;
  auto file = whole_file({"ab", "abc", "bc"}, R"(["b c", "a b"])");  // abc 258, which no merge makes
  const ByteLevelBpe plain = load(file);
  EXPECT_EQ(plain.encode("abc"), (WholeIds{'a', 259}));
  file["model"]["ignore_merges"] = true;
  const ByteLevelBpe whole = load(file);
  EXPECT_EQ(whole.encode("abc abc"), (WholeIds{258, ' ', 'a', 259})) << "a word that is a token, and one that is none";
  EXPECT_NE(whole.content_hash(), plain.content_hash());

  auto composed = whole_file({}, "[]");
  composed["normalizer"] = {{"type", "NFC"}};
  EXPECT_EQ(load(composed).encode("e\u0301"), (WholeIds{0xC3, 0xA9}));
  EXPECT_NE(load(composed).content_hash(), load(whole_file({}, "[]")).content_hash());

  composed["added_tokens"].push_back({{"id", 257}, {"content", "e\u0301x"}, {"special", false}});
  EXPECT_EQ(load(composed).encode("\u00E9x"), WholeIds{257}) << "a token is composed as the text is";

  auto literal = whole_file({}, "[]");
  literal["added_tokens"].push_back({{"id", 258}, {"content", "<t>"}, {"special", false}, {"normalized", false}});
  literal["added_tokens"].push_back({{"id", 260}, {"content", "<t>x"}, {"special", false}, {"normalized", false}});
  literal["added_tokens"].push_back({{"id", 257}, {"content", "\u4E2D"}, {"special", false}});
  const ByteLevelBpe literals = load(literal);
  EXPECT_EQ(literals.encode("a<t><t>x<b"), (WholeIds{'a', 258, 260, '<', 'b'})) << "the longest of them";
  EXPECT_EQ(literals.encode("<|endoftext|>").size(), 13u) << "special ones come from no text";
  EXPECT_EQ(literals.encode("\u4E2D"), WholeIds{257});
  EXPECT_EQ(literals.vocab_size(), 261) << "259 is a hole";
  EXPECT_EQ(literals.token_bytes(259), "");

  auto later = whole_file({"ab", "abc", "bc"}, R"(["a bc", "b c"])");  // the first uses what the second makes
  EXPECT_EQ(load(later).encode("abc"), WholeIds{258});

  auto end = whole_file({}, "[]");
  end["model"]["vocab"].erase("<|endoftext|>");
  end["added_tokens"] = {{{"id", 256}, {"content", "<|end_of_text|>"}, {"special", true}}};
  EXPECT_EQ(load(end).end_of_document(), 256);
}

/// A change to a tokenizer.json: where, to what, and the error that names it; "" where it changes no ids.
struct Change {
  const char *pointer, *value, *error;
};
const Change kChanges[] = {
    {"/model/type", R"("WordPiece")", R"(model.type = "WordPiece": must be "BPE")"},
    {"/model/ignore_merges", "true", ""},
    {"/model/ignore_merges", "3", "model.ignore_merges = 3: must be true or false"},
    {"/model/ignore_merges", "false", ""},
    {"/model/byte_fallback", "true", "model.byte_fallback = true: must be false: every byte has a token"},
    {"/model/byte_fallback", "null", ""},
    {"/model/continuing_subword_prefix", R"("##")", R"(model.continuing_subword_prefix = "##": must be empty)"},
    {"/model/continuing_subword_prefix", R"("")", ""},
    {"/model/end_of_word_suffix", R"("</w>")", R"(model.end_of_word_suffix = "</w>": must be empty)"},
    {"/model/end_of_word_suffix", "null", ""},
    {"/model/dropout", "0.1", "model.dropout = 0.1: must be null or 0: ids would be random"},
    {"/model/dropout", "0.0", ""},
    {"/model/dropout", "null", ""},
    {"/model/unk_token", R"("<unk>")", ""},
    {"/normalizer", R"({"type": "NFC"})", ""},
    {"/normalizer", R"({"type": "Sequence", "normalizers": [{"type": "NFC"}]})", ""},
    {"/normalizer", R"({"type": "NFKC"})", R"(normalizer.type = "NFKC": must be NFC, or normalizer null)"},
    {"/normalizer", R"({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Strip"}]})",
     R"(normalizer.normalizers[1].type = "Strip": must be NFC)"},
    {"/normalizer", "{}", "normalizer.type = null: must be NFC"},
    {"/normalizer", R"({"type": "NFC", "form": 1})",
     "normalizer.form = 1: this program does not know what it does to ids; members are type"},
    {"/normalizer", R"({"type": "Sequence", "normalizers": []})", ""},
    {"/truncation", R"({"max_length": 8})",
     R"(truncation = {"max_length":8}: must be null: it cuts the ids of a text off)"},
    {"/truncation", "null", ""},
    {"/padding", R"({"pad_id": 0})", R"(padding = {"pad_id":0}: must be null: it adds ids to a text)"},
    {"/padding", R"("")", R"(padding = "": must be null)"},
    {"/version", "1", "version = 1: must be a text"},
    {"/chat_template", R"("x")",
     R"(chat_template = "x": this program does not know what it does to ids; members are version, truncation,)"},
    {"/decoder", "3", "decoder = 3: must be an object"},
    {"/model/cache", "1",
     "model.cache = 1: this program does not know what it does to ids; members are type, dropout,"},
    {"/model/fuse_unk", "false", ""},
    {"/model/fuse_unk", "0", "model.fuse_unk = 0: must be true or false"},
    {"/model/unk_token", "7", "model.unk_token = 7: must be a text"},
    {"/model/dropout", R"("")", R"(model.dropout = "": must be null or 0)"},
    {"/model/byte_fallback", "0", "model.byte_fallback = 0: must be false"},
    {"/pre_tokenizer/use_regexp", "false", "pre_tokenizer.use_regexp = false: this program does not know"},
    {"/pre_tokenizer/use_regex", "0", "pre_tokenizer.use_regex = 0: must be true or false"},
    {"/pre_tokenizer/trim_offsets", "1", "pre_tokenizer.trim_offsets = 1: must be true or false"},
    {"/pre_tokenizer",
     R"({"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": "a", "flags": "i"}, "behavior": "Isolated"}]})",
     R"(pre_tokenizer.pretokenizers[0].pattern.flags = "i": this program does not know)"},
    {"/pre_tokenizer",
     R"({"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": "a", "String": "a"}, "behavior": "Isolated"}]})",
     R"(pre_tokenizer.pretokenizers[0].pattern = {"Regex":"a","String":"a"}: must have one member)"},
    {"/pre_tokenizer",
     R"({"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Isolated", "invert": "no"}]})",
     R"(pre_tokenizer.pretokenizers[0].invert = "no": must be true or false)"},
    {"/pre_tokenizer",
     R"({"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": "\\w+|^$"}, "behavior": "MergedWithNext", "invert": true},
         {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]})",
     ""},
    {"/pre_tokenizer", R"({"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": 1}]})",
     "pre_tokenizer.pretokenizers[0].individual_digits = 1: must be true or false"},
    {"/post_processor", R"({"type": "ByteLevel", "cut": 1})", "post_processor.cut = 1: this program does not know"},
    {"/post_processor",
     R"({"type": "Sequence", "processors": [{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true},
         {"type": "TemplateProcessing", "single": [], "pair": [], "special_tokens": {}}]})",
     ""},
    {"/added_tokens/0/flags", "1", "added_tokens[0].flags = 1: this program does not know"},
    {"/added_tokens/0/special", R"("yes")", R"(added_tokens[0].special = "yes": must be true or false)"},
    {"/added_tokens/0", "7", "added_tokens[0] = 7: must be an object"},
    {"/added_tokens/0",
     R"({"id": 256, "content": "<|endoftext|>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": true, "special": true})",
     ""},
    {"/pre_tokenizer/type", R"("Whitespace")", R"(pre_tokenizer.type = "Whitespace": must be "ByteLevel")"},
    {"/pre_tokenizer", "null", R"(pre_tokenizer.type = null: must be "ByteLevel")"},
    {"/pre_tokenizer/add_prefix_space", "true", "pre_tokenizer.add_prefix_space = true: must be false"},
    {"/pre_tokenizer/use_regex", "false", ""},
    {"/pre_tokenizer",
     R"({"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": "\\p{L}+"}, "behavior": "Isolated"},
         {"type": "Digits", "individual_digits": true}, {"type": "ByteLevel", "use_regex": false}]})",
     ""},
    {"/pre_tokenizer", R"({"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}, {"type": "Digits"}]})",
     R"(pre_tokenizer.pretokenizers[1].type = "Digits": must not follow ByteLevel)"},
    {"/pre_tokenizer", R"({"type": "Sequence", "pretokenizers": [{"type": "Digits"}]})",
     R"(pre_tokenizer.pretokenizers = [{"type":"Digits"}]: must end with ByteLevel)"},
    {"/pre_tokenizer", R"({"type": "Sequence", "pretokenizers": [{"type": "Punctuation"}]})",
     R"(pre_tokenizer.pretokenizers[0].type = "Punctuation": must be Split, Digits or ByteLevel)"},
    {"/pre_tokenizer",
     R"({"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": "\\X+"}, "behavior": "Isolated"}]})",
     R"(pre_tokenizer.pretokenizers[0].pattern = {"Regex":"\\X+"}: must not hold \X: )"},
    {"/pre_tokenizer",
     R"({"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": "(?<=a+)b"}, "behavior": "Isolated"}]})",
     R"(pre_tokenizer.pretokenizers[0].pattern = {"Regex":"(?<=a+)b"}: must be a pattern that PCRE2 takes: lookbehind )"},
    {"/pre_tokenizer",
     R"({"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"String": " "}, "behavior": "Merged"}]})",
     R"(pre_tokenizer.pretokenizers[0].behavior = "Merged": must be Isolated, Removed, MergedWithPrevious, )"},
    {"/pre_tokenizer/trim_offsets", "true", ""},
    {"/post_processor", "null", ""},
    {"/post_processor", R"({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false})", ""},
    {"/post_processor", R"({"type": "RobertaProcessing", "sep": ["</s>", 2]})", ""},
    {"/post_processor", R"({"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A"}}]})", ""},
    {"/post_processor",
     R"({"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "</s>"}}]})", ""},
    {"/post_processor", R"({"type": "Sequence", "processors": [{"type": "ByteLevel"}, {"type": "Other"}]})",
     R"(post_processor.processors[1].type = "Other": must be ByteLevel)"},
    {"/post_processor", R"({"type": "Sequence", "processors": [{"type": "ByteLevel"}]})", ""},
    {"/added_tokens/0", R"({"id": 256, "content": "<|endoftext|>", "special": false})", ""},
    {"/added_tokens/0", R"({"id": 256, "content": "<|endoftext|>", "special": false, "lstrip": true})",
     "added_tokens[0].lstrip = true: must be false for a token that is not special"},
    {"/added_tokens/0/content", R"("")", "added_tokens[0].content = \"\": must not be empty"},
    {"/added_tokens/0/id", "7", "added_tokens[0].id = 7: the vocabulary has this token under 256"},
    {"/added_tokens", "null", ""},
    {"/decoder", R"({"type": "ByteLevel"})", ""},
};

TEST(BpeVocabulary, RefusesEveryMemberOfTokenizerJsonThatChangesIds) {
  const TempDir dir;
  const std::string where = str("[", (dir / "tokenizer.json").string(), "] ");
  for (const Change& change : kChanges) {
    auto file = whole_file({"ab"}, R"(["a b"])");
    file[nlohmann::ordered_json::json_pointer(change.pointer)] = nlohmann::ordered_json::parse(change.value);
    write_all(dir / "tokenizer.json", file.dump());
    const std::string error = error_of<InputError>([&] { load_bpe_vocabulary(*io::posix_fs(), dir.path()); });
    const std::string wanted = *change.error == '\0' ? "" : where + change.error;
    EXPECT_EQ(error.substr(0, wanted.empty() ? error.size() : wanted.size()), wanted)
        << change.pointer << " = " << change.value;
  }
}

TEST(BpeVocabulary, TellsThatMergesSeemToBeMissing) {
  const std::string json = small_vocabulary({"ab", "abc", "abcd"}).dump();
  EXPECT_EQ(BpeFiles(json, "a b\nab c\nabc d\n").load().warning, "");
  const BpeFiles cut(json, "a b\n");
  EXPECT_EQ(
      cut.load().warning,
      str("[", (cut.dir / "merges.txt").string(),
          "] its 1 merges do not make 2 tokens of the vocabulary, the first of which is 258 (\"abc\"): was the file "
          "cut short?"));
  const TempDir dir;
  const auto warning = [&](nlohmann::ordered_json file) {
    write_all(dir / "tokenizer.json", file.dump());
    return load_bpe_vocabulary(*io::posix_fs(), dir.path()).warning;
  };
  auto file = whole_file({"ab", "<pad>"}, R"(["a b"])");
  EXPECT_NE(warning(file).find("do not make 1 tokens of the vocabulary, the first of which is 258 (\"<pad>\")"),
            std::string::npos);
  file["added_tokens"].push_back({{"id", 258}, {"content", "<pad>"}, {"special", true}});
  EXPECT_EQ(warning(file), "") << "added tokens need no merge";
}

// model.vocab_size defaults to it, before a vocabulary is loaded.
TEST(CountIds, IsTheSizeOfTheLoadedVocabulary) {
  const std::shared_ptr<io::Fs> fs = io::posix_fs();
  const BpeFiles pair(small_vocabulary({"ab", "bc"}).dump(), "a b\nb c\n");
  EXPECT_EQ(count_ids("bpe", pair.dir.path(), *fs), 259);
  EXPECT_EQ(make_tokenizer("bpe", pair.dir.path(), *fs)->vocab_size(), 259);
  const TempDir whole;
  auto holes = whole_file({"ab"}, R"(["a b"])");
  holes["added_tokens"].push_back({{"id", 300}, {"content", "<t>"}, {"special", true}});
  write_all(whole / "tokenizer.json", holes.dump());
  EXPECT_EQ(count_ids("bpe", whole.path(), *fs), 301) << "258 to 299 are holes";
  EXPECT_EQ(make_tokenizer("bpe", whole.path(), *fs)->vocab_size(), 301);
  EXPECT_EQ(count_ids("byte", {}, *fs), 256);
  for (const char* name : {"gpt2", "bert-uncased", "bert-cased"}) {
    const io::Path shipped = gpt2_dir().parent_path() / name;
    EXPECT_EQ(count_ids(name, shipped, *fs), make_tokenizer(name, shipped, *fs)->vocab_size()) << name;
  }
}

TEST(CountIds, RefusesWhatIsNoVocabulary) {
  const std::shared_ptr<io::Fs> fs = io::posix_fs();
  const auto error = [&](const std::string& json) {
    const BpeFiles files(json, "");
    const std::string where = str("[", (files.dir / "vocab.json").string(), "] ");
    const std::string text = error_of<InputError>([&] { (void)count_ids("bpe", files.dir.path(), *fs); });
    return text.starts_with(where) ? text.substr(where.size()) : text;
  };
  EXPECT_EQ(error("{}"), "has no tokens");
  EXPECT_EQ(error("{\"a\": 4000000000000}"),
            "line 1, id = 4000000000000: the ids of 1 tokens must be 0 to 0, each once");
  const TempDir none;
  const std::string missing = error_of<InputError>([&] { (void)count_ids("bpe", none.path(), *fs); });
  EXPECT_NE(missing.find((none / "encoder.json").string()), std::string::npos) << missing;
  EXPECT_NE(error_of<ConfigError>([&] { (void)count_ids("bpe", {}, *fs); }).find("vocab_dir is not set"),
            std::string::npos);
  EXPECT_NE(error_of<ConfigError>([&] { (void)count_ids("bp", {}, *fs); }).find("must be gpt2"), std::string::npos);
}

TEST(BpeVocabulary, RefusesBrokenVocabularies) {
  const auto error = [](const std::string& json) { return BpeFiles(json, "").error("vocab.json"); };
  auto bad = small_vocabulary({"ab", "bc"});
  bad["bc"] = 257;
  EXPECT_EQ(error(bad.dump(0)), "line 260, id = 257: two tokens have it; ids must be distinct");
  bad["bc"] = 300;
  EXPECT_EQ(error(bad.dump()), "line 1, id = 300: the ids of 259 tokens must be 0 to 258, each once");
  bad["bc"] = -1;
  EXPECT_EQ(error(bad.dump(0)), "line 260, token \"bc\": its id must be a whole number that is not negative");
  bad["bc"] = "7";
  EXPECT_EQ(error(bad.dump()), "line 1, token \"bc\": its id must be a whole number that is not negative");
  bad.erase("bc");
  bad["a b"] = 258;
  EXPECT_EQ(error(bad.dump()), "line 1, token \"a b\": must be written in the 256 characters of byte-level BPE");
  auto missing = small_vocabulary({});
  missing.erase("A");
  missing["AA"] = 'A';
  EXPECT_EQ(error(missing.dump()), "byte 65 has no token: byte-level BPE needs all 256");
  missing = small_vocabulary({});
  missing.erase("<|endoftext|>");
  EXPECT_EQ(error(missing.dump()), "token <|endoftext|> is missing: documents end with it");
  missing["<|im_end|>"] = 256;
  EXPECT_EQ(BpeFiles(missing.dump(), "").load().end_of_document, 256) << "of a chat model";
  missing["<|im_end|>"] = 257;
  missing["<|endoftext|>"] = 256;
  EXPECT_EQ(BpeFiles(missing.dump(), "").load().end_of_document, 256);
  EXPECT_EQ(error("{\"!\": 0, \"!\": 1}"), "line 1, column 12, key \"!\" is there twice");
  EXPECT_EQ(error("{\n\"!\" 0}"),
            "line 2, column 6, not valid JSON: syntax error while parsing object separator - unexpected number "
            "literal; expected ':'");
  EXPECT_EQ(error("[1]"), "line 1, JSON value: must be an object, {\"key\": ...}");
  EXPECT_EQ(error(""),
            "line 1, column 1, not valid JSON: syntax error while parsing value - unexpected end of input; expected "
            "'[', '{', or a literal");
  std::string deep = "{\"a\": ";
  deep.append(1000000, '[');
  EXPECT_EQ(error(deep), "line 1, token \"a\": its id must be a whole number that is not negative");
}

TEST(BpeVocabulary, RefusesBrokenMerges) {
  const std::string json = small_vocabulary({"ab", "abc", "cd"}).dump();
  const auto error = [&](const std::string& merges) { return BpeFiles(json, merges).error("merges.txt"); };
  EXPECT_EQ(error("#version: 0.2\na b\nab\n"), "line 3, merge \"ab\": must be two tokens with one space between them");
  EXPECT_EQ(error("a b c\n"), "line 1, merge \"a b c\": must be two tokens with one space between them");
  EXPECT_EQ(error("a b\n\nc d\n"), "line 2, merge \"\": must be two tokens with one space between them");
  EXPECT_EQ(error("a xy\n"), "line 1, merge \"a xy\": token \"xy\" is not in the vocabulary");
  EXPECT_EQ(error("a c\n"), "line 1, merge \"a c\": the token that it makes is not in the vocabulary");
  EXPECT_EQ(error("a b\na b\n"), "line 2, merge \"a b\": stands in the file twice");
  EXPECT_EQ(error("ab c\na b\n"), "line 1, merge \"ab c\": token \"ab\" is not a byte and no earlier merge makes it");
}

/// The published algorithm as it is written: again and again the pair of lowest rank, everywhere in the word.
std::vector<std::int32_t> merge_plainly(const BpeVocabulary& vocabulary, std::string_view word) {
  std::vector<std::int32_t> ids;
  for (const char c : word) ids.push_back(vocabulary.byte_ids[static_cast<unsigned char>(c)]);
  for (;;) {
    MergeTable::Merge best;
    std::pair<std::int32_t, std::int32_t> pair;
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      const MergeTable::Merge merge = vocabulary.merges.find(ids[i], ids[i + 1]);
      if (merge.rank < 0 || (best.rank >= 0 && merge.rank >= best.rank)) continue;
      best = merge;
      pair = {ids[i], ids[i + 1]};
    }
    if (best.rank < 0) return ids;
    std::vector<std::int32_t> merged;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const bool here = i + 1 < ids.size() && std::pair(ids[i], ids[i + 1]) == pair;
      merged.push_back(here ? best.merged : ids[i]);
      i += here ? 1 : 0;
    }
    ids = std::move(merged);
  }
}

TEST(WordMerger, MatchesThePlainAlgorithm) {
  const BpeVocabulary vocabulary = load_bpe_vocabulary(*io::posix_fs(), gpt2_dir());
  const RandomSite site{.seed = 11};
  WordMerger merger;
  for (std::uint64_t test = 0; test < 2000; ++test) {
    // Few letters, so that equal pairs stand side by side.
    const std::string_view letters = test % 3 == 0 ? "ab" : test % 3 == 1 ? "thenigaso" : "-= \xC3\xA9\xE2\x80";
    std::string word;
    for (std::uint64_t i = 0; i <= test % 40; ++i) word += letters[site.word(test * 64 + i) % letters.size()];
    std::vector<std::int32_t> ids;
    merger.merge(vocabulary, word, ids);
    ASSERT_EQ(ids, merge_plainly(vocabulary, word)) << word;
    std::vector<std::int32_t> in_less_memory;
    merge_long_word(vocabulary, word, in_less_memory);
    ASSERT_EQ(in_less_memory, ids) << word;
  }
}

// Longer than the others, so that stale candidates fill the room that they have.
TEST(WordMerger, LongWordsTakeTheSameIdsInLessMemory) {
  const BpeVocabulary vocabulary = load_bpe_vocabulary(*io::posix_fs(), gpt2_dir());
  const RandomSite site{.seed = 12};
  WordMerger merger;
  for (const std::string_view letters : {"a", "0", "ab", "thenigaso", "etaoinshrdlucmfw"}) {
    std::string word;
    for (std::uint64_t i = 0; i < 200'000; ++i) word += letters[site.word(i) % letters.size()];
    std::vector<std::int32_t> ids, in_less_memory;
    merger.merge(vocabulary, word, ids);
    merge_long_word(vocabulary, word, in_less_memory);
    ASSERT_TRUE(in_less_memory == ids) << letters;
  }
}

TEST(WordCache, TellsWordsApart) {
  WordCache cache;
  bool found = true;
  cache.at("a", found).ids[0] = 7;
  EXPECT_FALSE(found);
  EXPECT_EQ(cache.at("a", found).ids[0], 7);
  EXPECT_TRUE(found);
  using namespace std::string_view_literals;
  for (const std::string_view other : {"a\0"sv, "\0a"sv, "b"sv, "aaaaaaaaaaaaaaa"sv}) {
    cache.at(other, found);
    EXPECT_FALSE(found) << other.size();
  }
}

}  // namespace
}  // namespace megalith::tokenizer
