// Query after query, as if somebody pointed at one after the other.

import { useEffect } from "preact/hooks";
import type { Point } from "../../shared/map";
import type { Signal } from "../../shared/signals";
import type { LayerData } from "./data";
import { looksAtItself } from "./photo";
import { ofToken } from "./state";

/** Milliseconds for each query. */
const STEP = 700;

export function usePlaying(playing: Signal<boolean>, hover: Signal<Point>, layer: LayerData) {
  const on = playing.value;
  useEffect(() => {
    if (!on) return;
    let query = hover.peek().query ?? -1;
    const step = () => {
      query += 1;
      if (query >= layer.queries) {
        playing.value = false;
        hover.value = { query: null, key: null };
        return;
      }
      hover.value = pointOf(query, layer);
    };
    step();
    const timer = setInterval(step, STEP);
    return () => clearInterval(timer);
  }, [on, playing, hover, layer]);
}

/** A query as what is pointed at: of a text that attends to itself a token. */
export function pointOf(query: number, layer: LayerData): Point {
  return looksAtItself(layer) ? ofToken(query, layer) : { query, key: null };
}
