// Colours for shares from 0 to 1: a row of colours whose lightness changes evenly, away from the
// ground, so that 0 is the ground itself on both themes. One hue family, blue: it reads alike for
// all common kinds of colour blindness, and in grey.
import type { Theme } from "./look";

type Rgb = [number, number, number];

// Lightness, chroma, hue of Oklab (Ottosson, 2020), at even steps of the share.
const STOPS: Record<Theme, Rgb[]> = {
  light: [
    [0.985, 0.004, 240],
    [0.88, 0.055, 225],
    [0.75, 0.1, 232],
    [0.61, 0.135, 245],
    [0.47, 0.14, 258],
    [0.33, 0.11, 268],
    [0.2, 0.06, 275],
  ],
  dark: [
    [0.19, 0.012, 260],
    [0.31, 0.07, 265],
    [0.44, 0.115, 258],
    [0.57, 0.125, 242],
    [0.7, 0.11, 222],
    [0.83, 0.085, 200],
    [0.97, 0.04, 170],
  ],
};

/** Differences below 0, as light as those above. */
const LESS: Record<Theme, Rgb[]> = {
  light: [
    [0.985, 0.004, 60],
    [0.89, 0.06, 65],
    [0.77, 0.12, 60],
    [0.64, 0.15, 50],
    [0.5, 0.14, 42],
    [0.36, 0.1, 38],
    [0.23, 0.06, 35],
  ],
  dark: [
    [0.19, 0.012, 60],
    [0.31, 0.06, 45],
    [0.44, 0.1, 45],
    [0.57, 0.13, 50],
    [0.7, 0.14, 58],
    [0.83, 0.11, 70],
    [0.96, 0.05, 85],
  ],
};

/** Where nothing may be seen: neither a colour of the scale, nor the ground. */
const HIDDEN: Record<Theme, Rgb> = { light: [0.88, 0.004, 250], dark: [0.31, 0.006, 260] };

/** Where there is no number: of another hue than all that is one. */
const NO_NUMBER: Record<Theme, Rgb> = { light: [0.74, 0.13, 55], dark: [0.62, 0.12, 55] };

const ramps: Partial<Record<Theme, Uint32Array>> = {};
const lesser: Partial<Record<Theme, Uint32Array>> = {};

/** 256 colours as pixels of a canvas (ABGR in one number), from 0 to 1. */
export function ramp(theme: Theme): Uint32Array {
  return (ramps[theme] ??= Uint32Array.from({ length: 256 }, (_, at) =>
    pixel(between(STOPS[theme], at / 255)),
  ));
}

/** The same for what is below 0, from 0 to -1. */
function rampBelow(theme: Theme): Uint32Array {
  return (lesser[theme] ??= Uint32Array.from({ length: 256 }, (_, at) =>
    pixel(between(LESS[theme], at / 255)),
  ));
}

export function hiddenPixel(theme: Theme): number {
  return pixel(HIDDEN[theme]);
}

export function noNumberPixel(theme: Theme): number {
  return pixel(NO_NUMBER[theme]);
}

/** The colour of a share as CSS has it. */
export function css(share: number, theme: Theme): string {
  return cssOf(ramp(theme)[Math.round(255 * Math.min(1, Math.max(0, share)))]!);
}

/** Of either sign: where the ramps still have a hue, which at their ends is next to black, or white. */
const SIGNED = 0.7;

/** The pixel of a share from -1 to 1. */
export function signedPixel(share: number, theme: Theme): number {
  const at = Math.round(255 * SIGNED * Math.min(1, Math.abs(share)));
  return (share < 0 ? rampBelow(theme) : ramp(theme))[at]!;
}

export function cssSigned(share: number, theme: Theme): string {
  return cssOf(signedPixel(share, theme));
}

/** A colour for text that stands on the colour of this share. */
export function cssOnTop(share: number, theme: Theme): string {
  const [lightness] = between(STOPS[theme], Math.min(1, Math.max(0, share)));
  return lightness > 0.62 ? "#0b0f14" : "#ffffff";
}

export function cssOf(pixel: number): string {
  return `rgb(${pixel & 255} ${(pixel >> 8) & 255} ${(pixel >> 16) & 255})`;
}

function between(stops: Rgb[], share: number): Rgb {
  const at = share * (stops.length - 1);
  const low = Math.min(stops.length - 2, Math.floor(at));
  const part = at - low;
  return [0, 1, 2].map((n) => stops[low]![n]! * (1 - part) + stops[low + 1]![n]! * part) as Rgb;
}

function pixel([lightness, chroma, hue]: Rgb): number {
  const angle = (hue * Math.PI) / 180;
  const a = chroma * Math.cos(angle);
  const b = chroma * Math.sin(angle);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  const linear = [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ];
  const [red, green, blue] = linear.map((value) => {
    const bound = Math.min(1, Math.max(0, value));
    const curved = bound <= 0.0031308 ? 12.92 * bound : 1.055 * bound ** (1 / 2.4) - 0.055;
    return Math.round(255 * curved);
  }) as Rgb;
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}
