import assert from "node:assert/strict";
import { test } from "node:test";
import { gaps, label, names, short } from "../src/shared/labels";
import { titleOf } from "../src/views/heads/names";

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

test("a head of a model of several stacks says in which it is", () => {
  const names = [
    "encoder.layers.0.self_attn",
    "decoder.layers.0.self_attn",
    "decoder.layers.0.encoder_attn",
  ];
  const layers = names.map((name, number) => ({ name, number, run: 0 }));
  const titles = (data) => data.layers.map((_, layer) => titleOf(data, { layer, head: 1 }));
  assert.deepEqual(titles({ runs: [""], layers }), [
    "Layer 0 (encoder 0 self_attn), head 1",
    "Layer 1 (decoder 0 self_attn), head 1",
    "Layer 2 (decoder 0 encoder_attn), head 1",
  ]);
  const alike = [0, 1].map((number) => ({ name: `h.${number}.attn`, number, run: 0 }));
  assert.deepEqual(titles({ runs: [""], layers: alike }), ["Layer 0, head 1", "Layer 1, head 1"]);
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
