// What a page of heads shows, as signals, and all of it as the one state that an address holds.

import { batch, useSignal } from "@preact/signals";
import { useMemo } from "preact/hooks";
import { type Point, whole } from "../../shared/map";
import { scale } from "../../shared/scale";
import { chosen as chosenTheme } from "../../shared/theme";
import type { HeadsData } from "./data";
import type { Kind } from "./filter";
import type { Chosen } from "./names";
import type { Order } from "./overview";
import type { Mix } from "./several";
import { extentOf, isWithin, type ViewState } from "./state";

export function useViewState(data: HeadsData, start: ViewState) {
  const all = whole(...extentOf(data, start.first, start.second));
  const first = useSignal<Chosen>(start.first);
  const second = useSignal<Chosen | null>(start.second);
  /** Which of two heads is chosen anew. */
  const focused = useSignal<0 | 1>(0);
  const viewport = useSignal(start.viewport ?? all);
  const pinned = useSignal<Point>(start.pinned);
  const order = useSignal<Order>(start.order);
  const role = useSignal(start.role);
  const full = useSignal(start.full);
  const without = useSignal<Kind[]>(start.without);
  const least = useSignal(start.least);
  const several = useSignal<Chosen[]>(start.several);
  const mix = useSignal<Mix>(start.mix);
  const columns = useSignal(start.columns);
  const minus = useSignal(start.minus);
  const why = useSignal(start.why);
  const depth = useSignal(start.depth);
  const embed = useSignal(start.embed);
  useMemo(() => {
    scale.value = start.scale;
    if (start.theme) chosenTheme.value = start.theme;
  }, [start]);

  const state = {
    get value(): ViewState {
      const extent = extentOf(data, first.value, second.value);
      const [view, all] = [viewport.value, whole(...extent)];
      const isWhole = view.rows === all.rows && view.columns === all.columns;
      return {
        first: first.value,
        second: second.value,
        pinned: pinned.value,
        // Of a larger head that was beside this one nothing is kept.
        viewport: isWhole || !isWithin(view, ...extent) ? null : view,
        scale: scale.value,
        theme: chosenTheme.value,
        order: order.value,
        role: role.value,
        full: full.value,
        without: without.value,
        least: least.value,
        several: several.value,
        mix: mix.value,
        columns: columns.value,
        minus: minus.value,
        why: why.value,
        depth: depth.value,
        embed: embed.value,
      };
    },
    set value(next: ViewState) {
      const all = whole(...extentOf(data, next.first, next.second));
      batch(() => {
        [first.value, second.value, pinned.value] = [next.first, next.second, next.pinned];
        viewport.value = next.viewport ?? all;
        [scale.value, chosenTheme.value] = [next.scale, next.theme];
        [order.value, role.value, full.value] = [next.order, next.role, next.full];
        [without.value, least.value] = [next.without, next.least];
        [several.value, mix.value, columns.value] = [next.several, next.mix, next.columns];
        [minus.value, why.value, depth.value] = [next.minus, next.why, next.depth];
        embed.value = next.embed;
        focused.value = 0;
      });
    },
  };
  return {
    first,
    second,
    focused,
    viewport,
    pinned,
    order,
    role,
    full,
    without,
    least,
    several,
    mix,
    columns,
    minus,
    why,
    depth,
    embed,
    state,
  };
}
