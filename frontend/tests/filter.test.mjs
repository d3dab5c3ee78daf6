import assert from "node:assert/strict";
import { test } from "node:test";
import { askHeads } from "../src/views/heads/ask";
import { HeadMap } from "../src/views/heads/data";
import { filtered, isLeftOut, kindsOf, leftOut, shownTile } from "../src/views/heads/filter";
import { headMap } from "../src/views/heads/tiles";

const TEXT = ["[CLS]", "it", ",", "is", "[SEP]"];
// Row by row; the mask hides what is later.
const WEIGHTS = [
  [1, -1, -1, -1, -1],
  [0.6, 0.4, -1, -1, -1],
  [0.5, 0.25, 0.25, -1, -1],
  [0.5, 0.3, 0.125, 0.075, -1],
  [0.2, 0.2, 0.3, 0.1, 0.2],
].flat();
const side = { text: 0, first: 0 };
const layer = {
  number: 0,
  run: 0,
  queries: 5,
  keys: 5,
  query: side,
  key: side,
  rows: [{}],
  weights: { exact: true, shape: [5, 5] },
};
const data = { runs: [""], roles: { all: [], matching: [] }, texts: [TEXT], layers: [layer] };
const source = {
  array: async () => Float32Array.from(WEIGHTS),
  tile: async ({ cells }) => ({
    rows: [0, cells[0] === 5 ? 5 : 6],
    columns: [0, cells[1] === 5 ? 5 : 6],
    cells,
    values: Float32Array.from(cells[0] === 5 ? WEIGHTS : [9, 9, 9, 9, 9, 9, 9, 9, 9]),
    top: 1,
    grain: [1, 1],
    links: 0,
  }),
};

test("the kinds of tokens that are left out", () => {
  const kinds = (token, place = 3) =>
    ["first", "special", "punctuation"].filter((kind) => isLeftOut(token, place, [kind]));
  assert.deepEqual(kinds("[CLS]", 0), ["first", "special"]);
  for (const token of ["[SEP]", "</s>", "<|endoftext|>", " <s>"]) {
    assert.deepEqual(kinds(token), ["special"]);
  }
  for (const token of [",", " .", "\n", "", "⁉", "["]) {
    assert.deepEqual(kinds(token), ["punctuation"]);
  }
  for (const token of ["it", " 7", "日本", "it's", "a]"]) assert.deepEqual(kinds(token), []);
  assert.deepEqual(kinds(null, 0), ["first"]);
  assert.deepEqual(kindsOf(data, layer), ["first", "special", "punctuation"]);
  assert.deepEqual([...leftOut(data, layer, ["special"]).keys], [1, 0, 0, 0, 1]);
  assert.equal(leftOut(data, layer, []), null);
  // The last two queries behind a cache: without a text the first token is no query.
  const late = {
    ...layer,
    queries: 2,
    query: { text: null, first: 0 },
    key: { text: null, first: 0 },
  };
  const out = leftOut(data, late, ["first"]);
  assert.deepEqual(
    [[...out.queries], [...out.keys]],
    [
      [0, 0],
      [1, 0, 0, 0, 0],
    ],
  );
});

test("what is left out counts as hidden, and weak links are none", () => {
  const map = new HeadMap(layer, 0, (at) => WEIGHTS[at]);
  const out = leftOut(data, layer, ["first"]);
  const shown = filtered(map, out, 0.15);
  assert.equal(shown.weight(3, 0), -1);
  assert.equal(shown.weight(0, 0), -1);
  assert.equal(shown.weight(3, 1), 0.3);
  assert.equal(shown.weight(3, 2), 0);
  assert.deepEqual(shown.looksAt(3, 2), [{ query: 3, key: 1, weight: 0.3 }]);
  assert.equal(shown.end, 0.4);
  assert.equal(filtered(map, null, 0), map);
});

test("links of a long text are left out by rank", () => {
  const long = { ...layer, weights: undefined };
  const map = new HeadMap(
    long,
    0,
    null,
    null,
    [Int32Array.of(0, 0, 1, 0, 2), Int32Array.of(-1, 1, 2, 1, 1)],
    [Float32Array.of(1, 0.6, 0.5, 0.5, 0.3), Float32Array.of(0, 0.4, 0.25, 0.3, 0.2)],
  );
  const shown = filtered(map, leftOut(data, long, ["first"]), 0.25);
  assert.deepEqual(
    shown.looksAt(3, 1).map(({ key }) => key),
    [1],
  );
  assert.deepEqual(
    shown.strongest(9).map(({ query, key }) => [query, key]),
    [
      [2, 1],
      [1, 1],
      [3, 1],
      [4, 2],
    ],
  );
});

test("a tile without what is left out", async () => {
  const ask = (cells) => ({ layer: 0, head: 0, rows: [0, 5], columns: [0, 5], cells });
  const none = await shownTile(data, source, ask([5, 5]), [], 0);
  assert.deepEqual([...none.values], [...Float32Array.from(WEIGHTS)]);
  const single = await shownTile(data, source, ask([5, 5]), ["first", "special"], 0.2);
  const row = [...single.values.subarray(15, 20)].map((value) => Number(value.toFixed(3)));
  assert.deepEqual(row, [-1, 0.3, 0, 0, -1]);
  assert.ok([...single.values.subarray(20)].every((value) => value === -1));
  assert.equal(single.top, (await headMap(source, 0, layer, 0)) && Math.fround(0.4));
  // Of a cell of several tokens only what is left.
  const coarse = await shownTile(data, source, ask([3, 3]), ["first"], 0);
  assert.ok(Math.abs(coarse.values[0] - 0.2) < 1e-6);
});

test("heads are asked without what is left out, but for a pair", async () => {
  const ask = async (question, without) =>
    (await askHeads(data, source, layer, question, without))[0]?.link;
  const query = { query: 3, key: null };
  assert.equal((await ask(query, [])).key, 0);
  assert.equal((await ask(query, ["first"])).key, 1);
  assert.equal((await ask({ query: 3, key: 0 }, ["first"])).weight, 0.5);
});
