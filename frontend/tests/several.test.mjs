import assert from "node:assert/strict";
import { test } from "node:test";
import { linksOf } from "../src/views/heads/arcs";
import { HeadMap } from "../src/views/heads/data";
import { filtered } from "../src/views/heads/filter";
import { mixed, titleOfSeveral, toggled } from "../src/views/heads/several";

const side = { text: 0, first: 0 };
const layer = {
  number: 3,
  run: 0,
  queries: 3,
  keys: 3,
  query: side,
  key: side,
  rows: [{}, {}, {}],
  weights: { levels: 10, power: 2, top: [1, 1, 0.5], shape: [3, 3] },
};
const other = { ...layer, number: 4, keys: 2, rows: [{}] };
const data = {
  runs: [""],
  roles: { all: [], matching: [] },
  texts: [["a", "b", "c"]],
  layers: [layer, other],
};
const WEIGHTS = [
  [1, -1, -1, 0.25, 0.75, -1, 0.5, 0.25, 0.25],
  [0.5, 0.5, -1, 0.5, 0.5, -1, 0.005, 0.6, 0.395],
];
const maps = WEIGHTS.map((weights, head) => new HeadMap(layer, head, (at) => weights[at]));
const rounded = (map) => Array.from({ length: 9 }, (_, at) => Number(map.at(at).toFixed(6)));

test("the mean of heads", async () => {
  const mean = mixed(maps);
  // What one head hides counts as 0 there; what all hide is hidden.
  assert.deepEqual(rounded(mean), [0.75, 0.25, -1, 0.375, 0.625, -1, 0.2525, 0.425, 0.3225]);
  assert.equal(mixed([maps[0]]), maps[0]);
  assert.equal(mean.error(0.3), Math.max(maps[0].error(0.3), maps[1].error(0.3)));
  const received = await filtered(mean, null, 0.3).receivedBy();
  assert.deepEqual(
    [...received].map((each) => Number(each.toFixed(4))),
    [1.3775, 1.3, 0.3225],
  );
  const broken = mixed([maps[0], new HeadMap(layer, 1, () => NaN)]);
  assert.ok(Number.isNaN(broken.at(0)));
});

test("arcs over a text are the strong links", () => {
  const none = { query: null, key: null };
  assert.equal(linksOf(maps[1], none, 0).length, 6);
  assert.equal(linksOf(maps[1], none, 0.001).length, 7);
  assert.equal(linksOf(maps[0], { query: 2, key: null }, 0.3).length, 1);
});

test("heads come and go, those of the same texts only", () => {
  const [a, b, c] = [0, 1, 2].map((head) => ({ layer: 0, head }));
  assert.deepEqual(toggled(data, [], a, b), [a, b]);
  assert.deepEqual(toggled(data, [a, b], a, c), [a, b, c]);
  assert.deepEqual(toggled(data, [a, b], a, b), [a]);
  assert.deepEqual(toggled(data, [], a, { layer: 1, head: 0 }), [a]);
  assert.equal(titleOfSeveral(data, [a, b]), "Mean of 3.0 and 3.1");
  assert.equal(titleOfSeveral(data, [a, b, c]), "Layer 3, mean of 3 heads");
});
