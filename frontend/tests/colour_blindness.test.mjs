import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { css, cssOf, cssSigned, hiddenPixel, ramp } from "../src/shared/colour";

// Machado, Oliveira and Fernandes (2009), https://doi.org/10.1109/TVCG.2009.113, table of severity 1: of linear sRGB.
const EYES = {
  none: [
    [1, 0, 0],
    [0, 1, 0],
    [0, 0, 1],
  ],
  protanopia: [
    [0.152286, 1.052583, -0.204868],
    [0.114503, 0.786281, 0.099216],
    [-0.003882, -0.048116, 1.051998],
  ],
  deuteranopia: [
    [0.367322, 0.860646, -0.227968],
    [0.280085, 0.672501, 0.047413],
    [-0.01182, 0.04294, 0.968881],
  ],
  tritanopia: [
    [1.255528, -0.076749, -0.178779],
    [-0.078411, 0.930809, 0.147602],
    [0.004733, 0.691367, 0.3039],
  ],
};
// Five times what two patches beside each other need to look unlike (0.02).
const LEAST = 0.1;

const times = (matrix, [x, y, z]) => matrix.map(([a, b, c]) => a * x + b * y + c * z);
const linear = (share) => (share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4);
const light = (hex) =>
  [1, 3, 5].map((at) => linear(Number.parseInt(hex.slice(at, at + 2), 16) / 255));

/** Oklab (Ottosson, 2020) of linear sRGB. */
function oklab(colour) {
  const inside = colour.map((each) => Math.min(1, Math.max(0, each)));
  const cones = times(
    [
      [0.4122214708, 0.5363325363, 0.0514459929],
      [0.2119034982, 0.6806995451, 0.1073969566],
      [0.0883024619, 0.2817188376, 0.6299787005],
    ],
    inside,
  );
  return times(
    [
      [0.2104542553, 0.793617785, -0.0040720468],
      [1.9779984951, -2.428592205, 0.4505937099],
      [0.0259040371, 0.7827717662, -0.808675766],
    ],
    cones.map(Math.cbrt),
  );
}

test("heads that are shown at once differ to eyes of every kind, in both themes", () => {
  const css = readFileSync(new URL("../../../src/style.css", import.meta.url), "utf8");
  const pairs = [...css.matchAll(/--hue\d: light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\)/g)];
  assert.equal(pairs.length, 4);
  for (const theme of [1, 2].map((side) => pairs.map((found) => found[side]))) {
    for (const [kind, eye] of Object.entries(EYES)) {
      const seen = theme.map((hex) => oklab(times(eye, light(hex))));
      for (const [at, one] of seen.entries()) {
        for (const [before, other] of seen.slice(0, at).entries()) {
          const apart = Math.hypot(...one.map((each, axis) => each - other[axis]));
          assert.ok(apart >= LEAST, `${kind}: ${theme[at]} and ${theme[before]} are ${apart}`);
        }
      }
    }
  }
});

test("both ends of a difference have a hue, and differ to eyes of every kind, in both themes", () => {
  const rgb = (colour) => colour.match(/\d+/g).map((each) => linear(Number(each) / 255));
  for (const theme of ["light", "dark"]) {
    const [more, less, same] = [1, -1, 0].map((share) => rgb(cssSigned(share, theme)));
    for (const end of [more, less]) {
      const [, ...hue] = oklab(end);
      assert.ok(Math.hypot(...hue) >= LEAST, `${theme}: an end is next to grey`);
    }
    for (const [kind, eye] of Object.entries(EYES)) {
      const seen = [more, less, same].map((each) => oklab(times(eye, each)));
      for (const [one, other] of [
        [0, 1],
        [0, 2],
        [1, 2],
      ]) {
        const apart = Math.hypot(...seen[one].map((each, axis) => each - seen[other][axis]));
        assert.ok(apart >= LEAST, `${kind}, ${theme}: ${one} and ${other} are ${apart}`);
      }
    }
  }
});

test("Python has the same scale", () => {
  const path = new URL("../../../../src/clearhead/drawing/colours.py", import.meta.url);
  const python = readFileSync(path, "utf8");
  const hex = (colour) =>
    colour
      .match(/\d+/g)
      .map((each) => Number(each).toString(16).padStart(2, "0"))
      .join("")
      .toUpperCase();
  for (const [name, theme] of [
    ["MORE", "light"],
    ["DARK", "dark"],
  ]) {
    const [, list] = new RegExp(`^${name} = \\(([^)]*)\\)`, "m").exec(python);
    const found = [...list.matchAll(/#(\w{6})/g)].map(([, colour]) => colour);
    assert.equal(found.length, 13);
    // A step of 255 is the precision of the page's table.
    for (const [at, colour] of found.entries()) {
      const page = hex(css(at / 12, theme));
      for (const channel of [0, 2, 4]) {
        const [one, other] = [colour, page].map((each) =>
          Number.parseInt(each.slice(channel, channel + 2), 16),
        );
        assert.ok(Math.abs(one - other) <= 2, `${name} ${at}: ${colour} and ${page}`);
      }
    }
  }
  assert.ok(python.includes(`HIDDEN, NO_NUMBER = "#${hex(cssOf(hiddenPixel("light")))}"`));
});

test("what is hidden is told from what is nearly zero, in both themes", () => {
  const luminance = (pixel) =>
    times(
      [
        [0.2126, 0.7152, 0.0722],
        [0, 0, 0],
        [0, 0, 0],
      ],
      cssOf(pixel)
        .match(/\d+/g)
        .map((each) => linear(Number(each) / 255)),
    )[0];
  for (const theme of ["light", "dark"]) {
    const [low, high] = [hiddenPixel(theme), ramp(theme)[0]].map(luminance).sort((a, b) => a - b);
    assert.ok((high + 0.05) / (low + 0.05) > 1.3, theme);
  }
});
