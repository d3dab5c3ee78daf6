import assert from "node:assert/strict";
import { test } from "node:test";
import { gaps, label, names, short } from "../src/shared/labels";

test("what cannot be seen is spelled out", () => {
  const cases = [
    [" the", "␣the"],
    ["\n\t\r", "⏎⇥␍"],
    ["", "∅"],
    ["\x1b[31m", "\\x1b[31m"],
    ["\u00a0", "\\xa0"],
    ["a\u202eb", "a\\u202eb"],
    ["\u{e0001}", "\\U000e0001"],
    ["\ud800", "\\ud800"],
    ["猫😀", "猫😀"],
    ["👩‍👩‍👧", "👩‍👩‍👧"],
    ["👩🏽‍🚀!", "👩🏽‍🚀!"],
    ["a\u200db", "a\\u200db"],
    ["\u200d👩", "\\u200d👩"],
  ];
  for (const [token, expected] of cases) assert.equal(label(token), expected);
});

test("a mark does not combine with what stands before its label", () => {
  assert.equal(label("\u0301a"), "◌\u0301a");
  assert.equal(label("a\u0301"), "a\u0301");
});

test("a label is cut between characters as a reader counts them", () => {
  assert.equal(short("abc", 3), "abc");
  assert.equal(short("abcd", 3), "ab…");
  assert.equal(short("👩‍👩‍👧e\u0301xy", 3), "👩‍👩‍👧e\u0301…");
});

test("the space before a word is written only where two tokens of a list differ by it", () => {
  assert.deepEqual(names([" Mary", " gave", "!"]), ["Mary", "gave", "!"]);
  assert.deepEqual(names([" Mary", "Mary", " a"]), ["␣Mary", "Mary", "a"]);
  assert.deepEqual(names([" ", "   ", " ".repeat(19), "  a", " \n"]), [
    "␣",
    "␣␣␣",
    "␣×19",
    "␣␣a",
    "⏎",
  ]);
});

test("tokens are joined to their text", () => {
  const text = (tokens) => {
    const spaced = gaps(tokens);
    return tokens
      .map((token, at) => (spaced[at] ? " " : "") + token)
      .join("")
      .trim();
  };
  assert.equal(text(["ca", "usal", "()", " f"]), "causal() f");
  assert.equal(text(["didn", "'", "t", "cross", ".", "(", "a", ")"]), "didn't cross. (a)");
  assert.equal(text(["walk", "##ing"]), "walk##ing");
  assert.equal(text(["a", "'", "quote", "'", "b"]), "a ' quote ' b");
});
