import assert from "node:assert/strict";
import { test } from "node:test";
import { DECADES, number, percent, placeOf, quantity, ticks, within } from "../src/shared/scale";

test("a value has its place on the scale, and no value leaves it", () => {
  assert.equal(placeOf(0.2, 0.8, "linear"), 0.25);
  assert.equal(placeOf(0.2, 0.8, "root"), 0.5);
  assert.equal(placeOf(0.5 * 10 ** -(DECADES / 2), 0.5, "log"), 0.5);
  for (const kind of ["linear", "log", "root"]) {
    assert.equal(placeOf(0.7, 0.7, kind), 1);
    assert.equal(placeOf(0.8, 0.7, kind), 1);
    for (const value of [0, -1, Number.NaN]) assert.equal(placeOf(value, 0.7, kind), 0);
    assert.equal(placeOf(0.7, 0, kind), 0);
  }
  assert.equal(placeOf(1e-30, 1, "log"), 0);
});

test("the ticks of the legend are where the scale has their values", () => {
  for (const kind of ["linear", "log", "root"]) {
    const found = ticks(0.6, kind);
    assert.equal(found.length, 5);
    // The logarithmic scale ends at its last decade, where it has 0 as well.
    for (const { value, at } of found) {
      assert.ok(Math.abs(placeOf(value, 0.6, kind) - at) < 1e-12);
    }
  }
});

test("percentages have the digits that a reader can use", () => {
  const cases = [
    [0, "0 %"],
    [1, "100 %"],
    [0.9996, "100 %"],
    [0.1234, "12.3 %"],
    [0.01234, "1.2 %"],
    [0.07, "7.0 %"],
    [0.001, "0.10 %"],
    [0.0001234, "0.012 %"],
    [0.00001234, "0.001 %"],
    [1e-9, "< 0.0001 %"],
    [Number.NaN, "no number"],
  ];
  // No line breaks before the sign.
  for (const [share, expected] of cases) {
    assert.equal(percent(share), expected.replace(" %", "\u00a0%"));
  }
});

test("numbers have three digits, and none is made of what is no number", () => {
  assert.equal(number(1.23456), "1.23");
  assert.equal(number(0.000123456), "0.000123");
  assert.equal(number(12345.6), "12,346");
  assert.equal(number(Number.POSITIVE_INFINITY), "no number");
  assert.equal(quantity(2.5, "nats"), "2.5 nats");
  assert.equal(quantity(1, "tokens"), "1 token");
  assert.equal(quantity(1.0001, "queries"), "1 query");
  assert.equal(quantity(Number.NaN, "nats"), "no number");
});

test("an error is written from half a percent on, and leaves no digits that are not known", () => {
  const cases = [
    [0.6466, 0.0123, "65 ± 1 %"],
    [0.6466, 0.0023, "65 %"],
    [0.9996, 0.004, "100 %"],
    [0.6466, 0.0004, "64.7 %"],
    [0.00031, 0.00006, "0.031 %"],
    [0.6466, 0, "64.7 %"],
  ];
  for (const [share, error, expected] of cases) {
    assert.equal(within(share, error), expected.replace(" %", "\u00a0%"));
  }
});
