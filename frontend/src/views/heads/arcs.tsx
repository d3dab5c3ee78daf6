// Links as arcs over a text.

import { useLayoutEffect, useState } from "preact/hooks";
import type { Point } from "../../shared/map";
import { useOwnId } from "../../shared/own_id";
import { type HeadMap, isFew, type Link } from "./data";
import { hueOf } from "./several";
import type { Side } from "./text";

const ARCS = 8;
/** Weaker links are not drawn. */
const LEAST = 0.02;
/** While nothing is pointed at. */
const IDLE_ARCS = 40;
const IDLE_LEAST = 0.15;
/** Where a reader has said which are strong enough. */
const MOST_LINKS = 1000;

/** The links of what is pointed at, of a pair those of its query; of nothing, the strongest ones of a short text. */
export function linksOf(map: HeadMap, { query, key, token = false }: Point, least: number): Link[] {
  const of = (some: number) => (least ? MOST_LINKS : some);
  const from = (some: number) => least || some;
  if (query === null && key === null) {
    if (!isFew(map.layer)) return [];
    return map
      .strongest(of(Math.min(IDLE_ARCS, map.layer.queries * 2)))
      .filter((link) => link.weight >= from(IDLE_LEAST));
  }
  return [
    ...(query === null ? [] : map.looksAt(query, of(ARCS))),
    ...(key === null || (query !== null && !token) ? [] : map.seenBy(key, of(ARCS))),
  ].filter((link) => link.weight >= from(LEAST));
}

interface ArcsProps {
  root: { current: HTMLDivElement | null };
  links: (Link & { hue: number })[];
  active: Point;
  quiet: boolean;
  /** Changes when tokens are elsewhere on the screen. */
  placed: string;
  sides: Side[];
}

interface Arc {
  path: string;
  weight: number;
  incoming: boolean;
  hue: number;
}

export function Arcs({ root, links, active, quiet, placed, sides }: ArcsProps) {
  const heads = useOwnId();
  const [arcs, setArcs] = useState<Arc[]>([]);
  // biome-ignore lint/correctness/useExhaustiveDependencies: `placed` changes with what is measured.
  useLayoutEffect(() => {
    const place = root.current;
    if (!place) return;
    const origin = place.getBoundingClientRect();
    const lists = [...place.querySelectorAll(".ch-tokens")];
    const box = (kind: "query" | "key", at: number) => {
      const side = sides.findIndex((each) => each.kinds.includes(kind));
      if (side < 0) return null;
      const first = kind === "query" ? sides[side]!.firstQuery : sides[side]!.firstKey;
      const span = lists[side]?.querySelector(`[data-at="${at + first}"]`);
      if (!span) return null;
      const rect = span.getBoundingClientRect();
      return {
        x: rect.left + rect.width / 2 - origin.left,
        top: rect.top - origin.top,
        bottom: rect.bottom - origin.top,
      };
    };
    setArcs(
      links.flatMap((link) => {
        const [from, to] = [box("query", link.query), box("key", link.key)];
        if (!from || !to) return [];
        const incoming = link.hue < 0 && !quiet && link.query !== active.query;
        return [{ path: arc(from, to), weight: link.weight, incoming, hue: link.hue }];
      }),
    );
  }, [links, placed, quiet]);
  return (
    <svg class={`ch-arcs${quiet ? " ch-quiet" : ""}`} aria-hidden="true">
      <defs>
        {[false, true].map((incoming) => (
          <marker
            key={String(incoming)}
            id={`${heads}-${incoming}`}
            class={incoming ? "ch-head-incoming" : ""}
            viewBox="0 0 8 8"
            refX="7"
            refY="4"
            markerWidth="7"
            markerHeight="7"
            markerUnits="userSpaceOnUse"
            orient="auto"
          >
            <path d="M0 0.5 L8 4 L0 7.5 z" />
          </marker>
        ))}
      </defs>
      {arcs.map((each, at) => (
        <path
          key={at}
          {...(each.hue >= 0 ? {} : { "marker-end": `url(#${heads}-${each.incoming})` })}
          d={each.path}
          class={`${each.incoming ? "ch-incoming" : ""}${each.hue >= 0 ? ` ch-hue${each.hue}` : ""}`}
          style={hueOf(each.hue)}
          stroke-width={0.7 + 2.3 * each.weight}
          stroke-opacity={(quiet ? 0.1 : 0.35) + (quiet ? 0.45 : 0.6) * each.weight}
        />
      ))}
    </svg>
  );
}

interface Box {
  x: number;
  top: number;
  bottom: number;
}

function arc(from: Box, to: Box): string {
  if (Math.abs(from.top - to.top) < 4) {
    const apart = Math.abs(from.x - to.x);
    if (apart < 1) {
      return `M${from.x - 4} ${from.top} c-7 -13 15 -13 8 0`;
    }
    const height = Math.min(46, 8 + apart * 0.16);
    const y = Math.min(from.top, to.top);
    return `M${from.x} ${y} C${from.x} ${y - height} ${to.x} ${y - height} ${to.x} ${y}`;
  }
  const [y1, y2] = from.top < to.top ? [from.bottom, to.top] : [from.top, to.bottom];
  const bend = (y2 - y1) * 0.45;
  return `M${from.x} ${y1} C${from.x} ${y1 + bend} ${to.x} ${y2 - bend} ${to.x} ${y2}`;
}
