import assert from "node:assert/strict";
import { test } from "node:test";
import { batch, computed, signal } from "../src/shared/signals";

test("who follows is told at once, with each new value, and not of the same", () => {
  const one = signal(1);
  const told = [];
  const stop = one.subscribe((value) => told.push(value));
  one.value = 1;
  one.value = 2;
  stop();
  one.value = 3;
  assert.deepEqual(told, [1, 2]);
});

test("what is computed follows what it read last, and tells of another value only", () => {
  const [which, a, b] = [signal("a"), signal(1), signal(2)];
  const sum = computed(() => (which.value === "a" ? a.value : b.value));
  const large = computed(() => sum.value > 1);
  const told = [];
  large.subscribe((value) => told.push(value));
  b.value = 3;
  assert.deepEqual(told, [false]);
  which.value = "b";
  a.value = 9;
  b.value = 0;
  a.value = -1;
  which.value = "a";
  a.value = 5;
  assert.deepEqual(told, [false, true, false, true]);
});

test("several changes are told of once, when all are made", () => {
  const [a, b] = [signal(1), signal(2)];
  const sum = computed(() => a.value + b.value);
  const told = [];
  sum.subscribe((value) => told.push(value));
  batch(() => {
    a.value = 10;
    batch(() => {
      b.value = 20;
    });
    assert.equal(sum.peek(), 30);
  });
  batch(() => {
    a.value = 20;
    b.value = 10;
  });
  assert.deepEqual(told, [3, 30]);
});

test("a change that is made while it is told is told of too", () => {
  const [a, b] = [signal(0), signal(0)];
  const told = [];
  a.subscribe((value) => {
    b.value = 2 * value;
  });
  b.subscribe((value) => told.push(value));
  a.value = 3;
  assert.deepEqual(told, [0, 6]);
});

test("what fails leaves nothing that is followed by others", () => {
  const [one, other] = [signal(0), signal(0)];
  const inverse = computed(() => {
    if (one.value === 0) throw new Error("no inverse");
    return 1 / one.value;
  });
  const told = [];
  other.subscribe((value) => told.push(value));
  assert.throws(() => inverse.value, /no inverse/);
  assert.throws(() => inverse.subscribe(() => {}), /no inverse/);
  one.value = 2;
  other.value = 3;
  assert.deepEqual([inverse.value, inverse.peek(), told], [0.5, 0.5, [0, 3]]);
});
