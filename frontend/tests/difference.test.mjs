import assert from "node:assert/strict";
import { test } from "node:test";
import { HeadMap } from "../src/views/heads/data";
import {
  aligned,
  alignment,
  apart,
  differenceOf,
  differenceOfTiles,
  differenceTile,
  largestChanges,
  mostDifferent,
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

test("of long texts a cell of the difference is the difference of the cells", async () => {
  const tile = (values, more = {}) => ({
    rows: [0, 6],
    columns: [0, 6],
    cells: [2, 2],
    values: Float32Array.from(values),
    top: 1,
    grain: [3, 3],
    links: 0,
    ...more,
  });
  const ask = (...tiles) => differenceOfTiles(async () => tiles, { cells: [9, 9] });
  const [one, other] = [tile([1, -1, 0.25, 0.75]), tile([0.5, -1, -1, 1], { exact: true })];
  const found = await ask(one, other);
  assert.deepEqual([...found.values], [0.5, NOWHERE, 0.25, -0.25]);
  assert.deepEqual([found.top, found.signed, found.exact], [0.25, true, undefined]);
  assert.equal((await ask(other, other)).exact, true);
  assert.equal(await ask(one, null), null);
  // A finer map is asked for as many cells as the other has.
  const asked = [];
  const finer = async ({ cells }) => {
    asked.push(cells);
    return [one, cells[0] > 2 ? tile(Array(16).fill(0), { cells: [4, 4] }) : other];
  };
  assert.deepEqual((await differenceOfTiles(finer, { cells: [9, 9] })).values, found.values);
  assert.deepEqual(asked, [
    [9, 9],
    [2, 2],
  ]);
  assert.equal(await ask(one, tile([0, 0, 0, 0], { rows: [0, 5] })), null);
});

test("the head that is farthest from another one", async () => {
  const small = { levels: 10, power: 1, top: [1, 1, 1], shape: [1, 2] };
  const layers = [0, 1].map(() => ({ ...one, rows: [{}, {}, {}], small }));
  const codes = { "0/small": [11, 1, 10, 2, 0, 11], "1/small": [6, 6, 11, 1, 9, 3] };
  const source = { array: async (name) => Uint8Array.from(codes[name]) };
  const found = await mostDifferent({ layers }, source, { layer: 0, head: 0 });
  assert.deepEqual(found, { layer: 0, head: 2 });
});
