import assert from "node:assert/strict";
import { test } from "node:test";
import { HeadMap } from "../src/views/heads/data";
import { lightOf, looksAtItself, photoOf } from "../src/views/heads/photo";

const photo = { kind: "image/png", grid: [1, 2], skip: 1 };
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
  near(lightOf(map, photo, 1), [0.8, 0]);
  near(lightOf(map, photo, null), [(0.25 + 0.8 + 0.5) / 3, 0.25]);
});

test("a layer whose keys are the patches has the picture", () => {
  assert.equal(photoOf({ photo }, layer), photo);
  assert.equal(photoOf({ photo }, { ...layer, keys: 4 }), null);
  assert.equal(photoOf({ photo }, { ...layer, weights: undefined }), null);
  assert.equal(photoOf({}, layer), null);
  assert.ok(looksAtItself(layer));
  assert.ok(!looksAtItself({ ...layer, query: { text: 1, first: 0 } }));
});
