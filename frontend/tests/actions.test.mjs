import assert from "node:assert/strict";
import { test } from "node:test";
import { whole } from "../src/shared/map";
import * as actions from "../src/views/heads/actions";
import { readState } from "../src/views/heads/state";

const [text, other] = [
  { text: 0, first: 0 },
  { text: 1, first: 0 },
];
const layer = (number, more = {}) => ({
  name: `layers.${number}`,
  number,
  run: 0,
  queries: 3,
  keys: 3,
  query: text,
  key: text,
  rows: [{}, {}],
  heads: 2,
  weights: { exact: true, shape: [3, 3] },
  ...more,
});
const data = {
  runs: [""],
  texts: [[], []],
  layers: [layer(0), layer(1), layer(2, { queries: 5, keys: 5, query: other, key: other })],
};
const START = { ...readState("pin=2,1", data, { layer: 0, head: 0 }), second: false };
const after = (state, change) => ({ ...state, ...change });

test("another head of the same tokens keeps what is pinned, one of other tokens does not", () => {
  const near = actions.choose(data, START, { layer: 1, head: 1 });
  assert.deepEqual(near, { head: { layer: 1, head: 1 }, heads: [] });
  const far = actions.choose(data, START, { layer: 2, head: 0 });
  assert.deepEqual(far.view, whole(5, 5));
  assert.deepEqual(far.pin, { query: null, key: null });
});

test("the next head goes around", () => {
  const back = actions.step(data, START, -1);
  assert.deepEqual(back.head, { layer: 2, head: 1 });
  assert.deepEqual(actions.step(data, after(START, back), 1).head, START.head);
});

test("two heads: the second is chosen anew, and compare ends what it began", () => {
  const both = after(START, actions.compare(data, START));
  assert.deepEqual([both.with, both.second], [{ layer: 0, head: 1 }, true]);
  const next = after(both, actions.choose(data, both, { layer: 1, head: 0 }));
  assert.deepEqual([next.head, next.with], [START.head, { layer: 1, head: 0 }]);
  assert.deepEqual(actions.current(next), next.with);
  assert.deepEqual(actions.compare(data, next), { with: null, second: false });
  const first = after(next, { second: false });
  assert.deepEqual(actions.current(first), START.head);
  // Of another length the map is as long as the longer one.
  const last = after(START, { head: { layer: 1, head: 1 } });
  assert.deepEqual(actions.compare(data, last).view, whole(5, 5));
});

test("several heads are one head too few, or as many as are named", () => {
  const heads = [
    { layer: 0, head: 0 },
    { layer: 1, head: 1 },
  ];
  const both = after(START, actions.chooseSeveral(data, after(START, { with: heads[1] }), heads));
  assert.deepEqual([both.heads, both.with], [heads, null]);
  const one = after(both, actions.chooseSeveral(data, both, heads.slice(1)));
  assert.deepEqual([one.heads, one.head], [[], heads[1]]);
  const whole = after(START, actions.wholeLayer(data, START));
  assert.equal(whole.heads.length, 2);
  assert.deepEqual(actions.wholeLayer(data, whole), { heads: [] });
});

test("what is pinned twice is let go", () => {
  const point = { query: 1, key: 0 };
  const pinned = after(START, actions.pin(START, point, 3, 3));
  assert.deepEqual(pinned.pin, point);
  assert.deepEqual(actions.pin(pinned, point, 3, 3).pin, { query: null, key: null });
  const { view } = actions.pin(after(START, { view: whole(1, 1) }), { query: 2, key: 2 }, 3, 3);
  assert.deepEqual([view.row, view.column], [2, 2]);
  const left = after(START, actions.toggleWithout(START));
  assert.deepEqual(left.without, ["first", "special"]);
  assert.deepEqual(actions.toggleWithout(left), { without: [] });
});
