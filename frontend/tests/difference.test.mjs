import assert from "node:assert/strict";
import { test } from "node:test";
import { HeadMap } from "../src/views/heads/data";
import {
  aligned,
  alignment,
  apart,
  differenceOf,
  differenceTile,
  largestChanges,
  NOWHERE,
} from "../src/views/heads/difference";
import { leftOut } from "../src/views/heads/filter";

const [A, B] = [
  ["the", "cat", "sat"],
  ["the", "big", "cat", "sat"],
];
function layer(text, count, run) {
  const side = { text, first: 0 };
  const weights = { exact: true, shape: [count, count] };
  return { run, queries: count, keys: count, query: side, key: side, rows: [{}], weights };
}
const [one, other] = [layer(0, 3, 0), layer(1, 4, 1)];
const data = { texts: [A, B], layers: [one, other], runs: ["A", "B"] };
const WEIGHTS = {
  one: [1, -1, -1, 0.25, 0.75, -1, 0.5, 0.25, 0.25],
  other: [1, -1, -1, -1, 0.5, 0.5, -1, -1, 0.5, 0.25, 0.25, -1, 0.125, 0.25, 0.125, 0.5],
};
const a = new HeadMap(one, 0, (at) => WEIGHTS.one[at]);
const b = new HeadMap(other, 0, (at) => WEIGHTS.other[at]);

test("texts are aligned by their longest common subsequence", () => {
  assert.deepEqual([...aligned(A, B)], [0, 2, 3]);
  assert.deepEqual([...aligned(B, A)], [0, -1, 1, 2]);
  assert.deepEqual([...aligned([], A)], []);
  assert.deepEqual([...aligned(["x", "a", "b", "a"], ["a", "b", "a", "x"])], [-1, 0, 1, 2]);
});

test("a difference is A − B of the pairs that both texts have", () => {
  const places = alignment(data, one, other);
  const found = differenceOf(a, b, places);
  assert.deepEqual([...found], [0, NOWHERE, NOWHERE, -0.25, 0.5, NOWHERE, 0.375, 0.125, -0.25]);
  assert.equal(apart(found, 3, 3), (0 + 0.75 / 2 + 0.75 / 2) / 3);
  assert.deepEqual(largestChanges(found, 3, 2, null, null), [
    { query: 1, key: 1, by: 0.5 },
    { query: 2, key: 0, by: 0.375 },
  ]);
  assert.deepEqual(largestChanges(found, 3, 9, 2, 2), [{ query: 2, key: 2, by: -0.25 }]);
  const filtered = differenceOf(a, b, places, leftOut(data, one, ["first"]));
  assert.deepEqual([...filtered.subarray(6)], [NOWHERE, 0.125, -0.25]);
  // What B has and A has not is in no row; of texts without tokens nothing is known.
  assert.deepEqual([...alignment(data, other, one).keys], [0, -1, 1, 2]);
  const nameless = { ...other, key: { text: null, first: 0 } };
  assert.equal(alignment(data, one, nameless), null);
  assert.equal(alignment(data, one, { ...other, weights: undefined }), null);
});

test("a cell of differences has the mean of its queries and the sum of its keys", () => {
  const found = differenceOf(a, b, alignment(data, one, other));
  const ask = (cells) => ({ layer: 0, head: 0, rows: [0, 3], columns: [0, 3], cells });
  const single = differenceTile(found, one, ask([30, 30]));
  assert.deepEqual([...single.values], [...found]);
  assert.deepEqual([single.top, single.signed], [0.5, true]);
  const coarse = differenceTile(found, one, ask([2, 2]));
  assert.deepEqual([...coarse.values], [0.125, NOWHERE, 0.5, -0.25]);
});
