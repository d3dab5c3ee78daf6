import assert from "node:assert/strict";
import { test } from "node:test";
import { HeadMap, looksAtItself } from "../src/views/heads/data";
import { lightOf, mostOf, photosOf, shareOf } from "../src/views/heads/photo";
import { patchName } from "../src/views/heads/words";

const photo = { kind: "image/png", grid: [1, 2], text: 0, places: [1, 2] };
const side = { text: 0, first: 0 };
const layer = { queries: 3, keys: 3, query: side, key: side, weights: {} };
const WEIGHTS = [0.5, 0.25, 0.25, 0.2, 0.8, -1, 0, 0.5, 0.5];
const map = new HeadMap(layer, 0, (at) => WEIGHTS[at]);

test("the light on each patch is what it is given", () => {
  const near = (found, expected) =>
    assert.ok(
      expected.every((each, at) => Math.abs(found[at] - each) < 1e-6),
      String(found),
    );
  near(lightOf(map, 1), [0.2, 0.8, 0]);
  near(lightOf(map, null), [0.7 / 3, (0.25 + 0.8 + 0.5) / 3, 0.25]);
  near([shareOf(lightOf(map, 2), photo), mostOf(lightOf(map, 1), [photo])], [1, 0.8]);
});

test("of a long text it is that of the links that are known", () => {
  const links = new HeadMap(layer, 0, null, null, [[0, 1, 2]], [[1, 0.75, 0.5]]);
  assert.deepEqual([...lightOf(links, 1)], [0, 0.75, 0]);
});

test("a layer whose keys are of the text has its pictures", () => {
  assert.deepEqual(photosOf({ photos: [photo] }, layer), [photo]);
  assert.deepEqual(photosOf({ photos: [photo] }, { ...layer, key: { text: 1, first: 0 } }), []);
  assert.deepEqual(photosOf({}, layer), []);
  assert.ok(looksAtItself(layer));
  assert.ok(!looksAtItself({ ...layer, query: { text: 1, first: 0 } }));
});

test("a patch has a name, with the number of its picture where there are several", () => {
  assert.equal(patchName("3,9"), "row 3, column 9");
  assert.equal(patchName("2:3,9"), "picture 2, row 3, column 9");
  assert.equal(patchName("3,9."), "3,9.");
});
