// The text itself: what a token looks at is coloured, and its strongest links are arcs.

import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { css, cssOnTop } from "../../shared/colour";
import { CONTINUED, gaps, label } from "../../shared/labels";
import { useLook } from "../../shared/look";
import type { Found, Point } from "../../shared/map";
import { number, placeOf } from "../../shared/scale";
import type { ReadonlySignal } from "../../shared/signals";
import type { Source } from "../../source";
import { Arcs, linksOf } from "./arcs";
import { type HeadMap, isFew } from "./data";
import type { PhotoData } from "./photo";
import { PhotoView } from "./photo_view";

/** So many tokens are in the page at a time. */
const WINDOW = 600;
export interface Side {
  /** "query" and "key", or both for a text that attends to itself. */
  kinds: ("query" | "key")[];
  title: string;
  tokens: string[];
  /** Which token of the text is query 0, and which is key 0. */
  firstQuery: number;
  firstKey: number;
  queries: number;
  keys: number;
  /** The pictures whose patches are keys. */
  photos: PhotoData[];
}

/** A head, and the number of its colour. */
export interface Coloured {
  map: HeadMap;
  hue: number;
}

interface TextsProps {
  source: Source;
  sides: Side[];
  map: HeadMap | null;
  /** The heads whose links are drawn, each in its colour; null for those of the map. */
  heads: Coloured[] | null;
  active: Point;
  found: Found;
  /** The weight at which the colours end, as on the map. */
  end: ReadonlySignal<number>;
  /** Links below this weight are not drawn; 0 leaves it to the text. */
  least: number;
  onHover: (point: Point) => void;
  /** `asKey`: as the key of the query that is pinned. */
  onPin: (point: Point, asKey: boolean) => void;
}

export function Texts(props: TextsProps) {
  const { sides, map, heads, active, least } = props;
  const root = useRef<HTMLDivElement>(null);
  const [size, setSize] = useState("");
  const [scrolled, setScrolled] = useState(0);
  useLayoutEffect(() => {
    const watch = new ResizeObserver(([entry]) => {
      const { width, height } = entry!.contentRect;
      setSize(`${width} ${height}`);
    });
    watch.observe(root.current!);
    return () => watch.disconnect();
  }, []);
  const patches = sides.flatMap(({ photos }) => photos.flatMap(({ places }) => places)).length;
  const few = map !== null && isFew(map.layer, patches);
  const idle = active.query === null && active.key === null;
  const drawn = useMemo(
    () =>
      (heads ?? (map ? [{ map, hue: -1 }] : [])).flatMap(({ map, hue }) =>
        linksOf(map, active, least).map((link) => ({
          ...link,
          hue,
        })),
      ),
    [heads, map, active, least],
  );
  return (
    <div class={`ch-texts${few ? " ch-few" : ""}`} ref={root}>
      {sides.map((side) => (
        <Tokens
          key={side.title}
          {...props}
          side={side}
          onScroll={() => setScrolled(scrolled + 1)}
        />
      ))}
      <Arcs
        root={root}
        links={drawn}
        active={active}
        quiet={idle}
        placed={`${size} ${scrolled}`}
        sides={sides}
      />
    </div>
  );
}

interface TokensProps extends TextsProps {
  side: Side;
  /** Where tokens are on the screen has changed. */
  onScroll: () => void;
}

function Tokens(props: TokensProps) {
  const { source, side, map, active, found, end, onHover, onPin, onScroll } = props;
  const list = useRef<HTMLDivElement>(null);
  const [start, setStart] = useState(0);
  const { tokens, photos, firstKey, firstQuery } = side;
  const asQuery = side.kinds.includes("query");
  const asKey = side.kinds.includes("key");
  const pointOf = (at: number): Point => {
    const query = at - firstQuery;
    const key = at - firstKey;
    return {
      query: asQuery && query >= 0 && query < side.queries ? query : null,
      key: asKey && key >= 0 && key < side.keys ? key : null,
      token: asQuery && asKey,
    };
  };
  const ownOf = ({ query, key }: Point): number | null => {
    if (asQuery && query !== null) return query + firstQuery;
    return asKey && key !== null ? key + firstKey : null;
  };

  // The tokens that are in the list, in which a picture is in the place of its first patch.
  const places = useMemo(() => {
    const later = new Set(photos.flatMap(({ places }) => places.slice(1)));
    return [...tokens.keys()].filter((at) => !later.has(at));
  }, [tokens, photos]);
  const stop = Math.min(places.length, start + WINDOW);
  const last = Math.max(0, places.length - WINDOW);
  // Made once: what is pointed at changes only pictures, and Preact leaves alone what is the same object.
  // biome-ignore lint/correctness/useExhaustiveDependencies: the rest is that of the text and the map.
  const { listed, rightToLeft } = useMemo(() => {
    const sample = places.slice(start, stop);
    const gap = gaps(tokens);
    const shared = { source, photos, map, active, ownOf };
    const from = sample.filter((at) => RIGHT_TO_LEFT.test(tokens[at]!));
    return {
      listed: sample.map((at) => {
        const photo = photos.find(({ places }) => places[0] === at);
        if (!photo) return <Token key={at} at={at} token={tokens[at]!} gap={gap[at]!} />;
        return (
          <PhotoView
            {...shared}
            key={at}
            photo={photo}
            onHover={(at) => onHover(pointOf(at))}
            onPin={(at, asKey) => onPin(pointOf(at), asKey)}
          />
        );
      }),
      rightToLeft: from.length > sample.length / 3,
    };
  }, [tokens, places, photos, start, stop, map, photos.length ? active : null]);

  const own = ownOf(active);
  const shown = photos.find(({ places }) => places.includes(own ?? -1));
  const spot = own === null ? null : places.indexOf(shown ? shown.places[0]! : own);
  // A long text shows the part where the token of interest is.
  useEffect(() => {
    if (spot !== null && last > 0) {
      setStart((start) =>
        spot >= start && spot < start + WINDOW
          ? start
          : Math.max(0, Math.min(last, spot - WINDOW / 2)),
      );
    }
  }, [spot, last]);

  const { scale, theme } = useLook();
  const [kind, dark, top] = [scale.value, theme.value, end.value];
  const hits = found[asKey ? "keys" : "queries"];
  const { query } = active;
  const ownKey = asKey && !asQuery && active.key !== null ? active.key + firstKey : null;
  // Not by Preact, which would compare all tokens for each of them that is pointed at.
  // biome-ignore lint/correctness/useExhaustiveDependencies: another start shows other tokens.
  useLayoutEffect(() => {
    const found = new Set(hits);
    const shares = map && query !== null && asKey ? map.row(query) : null;
    for (const span of list.current!.querySelectorAll<HTMLElement>("[data-at]")) {
      const at = Number(span.dataset.at);
      const place = placeOf(shares?.[at - firstKey] ?? 0, top, kind);
      const coloured = place > 0.02;
      // Most have no colour, before and after.
      if (coloured || span.style.color) {
        span.style.backgroundColor = coloured ? css(place, dark) : "";
        span.style.color = coloured ? cssOnTop(place, dark) : "";
      }
      span.classList.toggle("ch-own", at === own || at === ownKey);
      span.classList.toggle("ch-hit", found.has(at - (asKey ? firstKey : firstQuery)));
      if (span.ariaSelected !== String(at === own)) span.ariaSelected = String(at === own);
    }
  }, [map, query, own, ownKey, hits, kind, dark, top, asKey, firstKey, firstQuery, start]);

  // A token that is pointed at elsewhere comes into view; only the list is scrolled for it.
  // biome-ignore lint/correctness/useExhaustiveDependencies: another start shows other tokens.
  useLayoutEffect(() => {
    const box = list.current;
    if (own === null || !box || box.matches(":hover") || box.scrollHeight <= box.clientHeight)
      return;
    const span = box.querySelector<HTMLElement>(`[data-at="${own}"]`);
    if (!span) return;
    const [top, seen] = [span.offsetTop, box.scrollTop];
    if (top < seen || top + span.offsetHeight > seen + box.clientHeight) {
      box.scrollTop = top - box.clientHeight / 2;
    }
  }, [own, start]);

  const atOf = (event: Event): number | null => {
    const span = (event.target as Element).closest<HTMLElement>("[data-at]");
    return span ? Number(span.dataset.at) : null;
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const photo = photos.find(({ places }) => places.includes(own ?? -1));
    const [line, side] = [photo?.grid[1] ?? 1, rightToLeft ? -1 : 1];
    const step = { ArrowLeft: -side, ArrowUp: -line, ArrowRight: side, ArrowDown: line }[event.key];
    if (step !== undefined) {
      const next =
        own === null ? places[start]! : Math.max(0, Math.min(tokens.length - 1, own + step));
      onHover(pointOf(next));
    } else if ((event.key === "Enter" || event.key === " ") && own !== null) {
      onPin(pointOf(own), event.shiftKey);
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  };
  return (
    <div class="ch-text">
      <div class="ch-text-title">
        <span class="ch-caption">{side.title}</span>
        {last > 0 && (
          <span class="ch-pages">
            <button
              type="button"
              class="ch-button"
              disabled={start === 0}
              onClick={() => setStart(Math.max(0, start - WINDOW))}
              aria-label="Earlier tokens"
            >
              ‹
            </button>
            <span>
              {number(places[start]!)}–{number(places[stop - 1]!)} of {number(tokens.length)}
            </span>
            <button
              type="button"
              class="ch-button"
              disabled={stop === places.length}
              onClick={() => setStart(Math.min(last, stop))}
              aria-label="Later tokens"
            >
              ›
            </button>
          </span>
        )}
      </div>
      <div
        class="ch-tokens"
        role="listbox"
        aria-label={`${side.title}. Arrow keys go from token to token, Enter pins.`}
        tabIndex={0}
        dir={rightToLeft ? "rtl" : "ltr"}
        ref={list}
        onKeyDown={onKeyDown}
        onPointerOver={(event) => {
          const at = atOf(event);
          if (at !== null && event.pointerType === "mouse") onHover(pointOf(at));
        }}
        onPointerLeave={() => onHover({ query: null, key: null })}
        onBlur={() => onHover({ query: null, key: null })}
        onScroll={onScroll}
        // With Shift a browser would select the text between both.
        onMouseDown={(event) => event.shiftKey && event.preventDefault()}
        onClick={(event) => {
          const at = atOf(event);
          if (at !== null) onPin(pointOf(at), event.shiftKey);
        }}
      >
        {listed}
      </div>
    </div>
  );
}

const RIGHT_TO_LEFT = /[\p{Script=Hebrew}\p{Script=Arabic}\p{Script=Syriac}\p{Script=Thaana}]/u;

/** A token, joined to those of its word; spaces are those of the text. */
function Token({ at, token, gap }: { at: number; token: string; gap: boolean }) {
  const [, space, rest] = /^( *)(.*)$/s.exec(token.replace(CONTINUED, ""))!;
  const before = rest && at ? space : "";
  return (
    <>
      {gap ? " " : before ? <span class="ch-space">{before}</span> : <wbr />}
      <bdi class="ch-token" role="option" aria-selected="false" data-at={at} title={`token ${at}`}>
        {rest ? label(rest) : space || label("")}
      </bdi>
      {token.endsWith("\n") && <br />}
    </>
  );
}
