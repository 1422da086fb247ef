#include "megalith/eval/detokenize.h"

#include <gtest/gtest.h>

namespace megalith::eval {
namespace {

TEST(Detokenize, EveryRuleAlone) {
  const struct {
    const char *from, *to;
  } cases[] = {{"the boys ' game", "the boys' game"},
               {"a/' 5/b", "a/'[0-9]/b"},
               {"a/' x /' 5 /", "a/'x /' 5 /"},
               {"well @-@ known", "well-known"},
               {"1 @,@ 000", "1,000"},
               {"2 @.@ 5", "2.5"},
               {"a : b", "a: b"},
               {"a ; b", "a; b"},
               {"a . b", "a. b"},
               {"a ! b", "a! b"},
               {"a ? b", "a? b"},
               {"a , b", "a, b"},
               {"f ( x ) y", "f (x) y"},
               {"f (  ) y", "f () y"},
               {"( a ( b ) c )", "(a ( b) c )"},
               {"[ a ] { b }", "[a] {b}"},
               {"say \" a b \" and \" c \"", "say \"a b\" and \"c\""},
               {"say \" a", "say \" a"},
               {"' a '", "'a'"},
               {"= = = = T = = = =", "==== T ===="},
               {"= = = T = = =", "=== T ==="},
               {"= = T = =", "== T =="},
               {"5 \u00b0 C", "5\u00b0C"},
               {"a \n b", "a\nb"},
               {"a N b", "a 1 b"},
               {"the man 's hat", "the man's hat"}};
  for (const auto& [from, to] : cases) EXPECT_EQ(detokenize_wikitext(from), to) << from;
}

// Each replacement works on the result of those before it, on the whole text.
TEST(Detokenize, RulesComeInTheirOrder) {
  EXPECT_EQ(detokenize_wikitext(" \n = T = \n \n A ( b , c ) . \n"), "\n= T =\n\nA (b, c).\n");
  EXPECT_EQ(detokenize_wikitext("a ' b 's"), "a 'b's") << "the quotes are closed before 's is looked for";
  EXPECT_EQ(detokenize_wikitext("\" a \n b \""), "\"a\nb\"");
  EXPECT_EQ(detokenize_wikitext(""), "");
}

TEST(Detokenize, PlainTextBecomesTokensAgain) {
  const char* const texts[] = {"It was a well @-@ known ( and 1 @,@ 000 @.@ 5 year old ) \" thing \" , he said : yes .",
                               "= = Title = = \n \n The boys ' game ended ; 5 \u00b0 C [ x ] ? !"};
  for (const char* const text : texts) EXPECT_EQ(retokenize_wikitext(detokenize_wikitext(text)), text);
}

TEST(Detokenize, DifferencesAreCountedByPlace) {
  EXPECT_EQ(count_differences("a b", "a b"), 0);
  EXPECT_EQ(count_differences("a b", "ab"), 1);
  EXPECT_EQ(count_differences("a @-@ b c", "a-b  c"), 3) << "before and after the dash, and between b and c";
  EXPECT_EQ(count_differences("a N b", "a 1 b"), 1);
  EXPECT_EQ(count_differences("abc", "ab"), 1);
  EXPECT_EQ(count_differences("", "ab"), 2);
}

TEST(Detokenize, WordsAreCountedAsByPython) {
  EXPECT_EQ(count_words("a b  c \n d"), 6);
  EXPECT_EQ(count_split_words(" a b  c \n d "), 6);
  EXPECT_EQ(count_split_words(""), 1);
  EXPECT_EQ(count_split_words("a"), 1);
}

TEST(Detokenize, DocumentsBeginAtHeadingsOfLevelOne) {
  using Documents = std::vector<std::string_view>;
  EXPECT_EQ(wikitext_documents(" \n = A = \n x \n = = B = = \n y \n = C = \n z \n"),
            (Documents{" = A = \n x \n = = B = = \n y ", " = C = \n z \n"}));
  EXPECT_EQ(wikitext_documents("intro \n = A = \n x"), (Documents{"intro ", " = A = \n x"}));
  EXPECT_EQ(wikitext_documents(" = A = \n"), (Documents{" = A = \n"}));
  EXPECT_EQ(wikitext_documents("text"), Documents{"text"});
}

}  // namespace
}  // namespace megalith::eval
