// The heads of a model: all of them as small maps, and one or two of them closely.

import { batch, useSignal } from "@preact/signals";
import { useMemo, useRef } from "preact/hooks";
import { useKeys } from "../../shared/keys";
import { ScaleButton } from "../../shared/legend";
import { including, type Point, whole } from "../../shared/map";
import { scale } from "../../shared/scale";
import { Shell } from "../../shared/shell";
import type { Tile, ViewProps } from "../../source";
import { type HeadsData, isFew } from "./data";
import { save, toPng, toSvg } from "./figure";
import { type Chosen, layerName, Overview, score } from "./overview";
import { HeadText, matches, NOTHING, Panel, tokenOf } from "./panel";

const KEYS: [string, string][] = [
  ["arrows", "Go from head to head, cell to cell, or token to token, wherever the focus is"],
  ["Enter", "Pin the token or the cell; once more, or Escape, lets go"],
  ["+  −  0", "On the map: zoom in, zoom out, show all"],
  ["Shift + arrows", "On the map: move it"],
  ["[  ]", "The head before, the next head"],
  ["/", "Search for a token; Enter goes to the next one"],
  ["c", "Compare with another head"],
  ["l", "Linear or logarithmic colours"],
  ["?", "This help"],
];

const MANY = 64;

export function Heads({ head, source }: ViewProps) {
  const data = head.data as HeadsData;
  const start = useMemo(() => interesting(data), [data]);
  const first = useSignal<Chosen>(start);
  const second = useSignal<Chosen | null>(null);
  const focused = useSignal<0 | 1>(0);
  const layer = data.layers[first.value.layer]!;
  const viewport = useSignal(whole(layer.queries, layer.keys));
  const hover = useSignal<Point>(NOTHING);
  const pinned = useSignal<Point>(NOTHING);
  const search = useSignal("");
  const at = useSignal(0);
  const drawn = [useSignal<Tile | null>(null), useSignal<Tile | null>(null)] as const;
  const input = useRef<HTMLInputElement>(null);
  // biome-ignore lint/correctness/useExhaustiveDependencies: the scale is chosen once for each run.
  useMemo(() => {
    scale.value = layer.keys > MANY ? "log" : "linear";
  }, [data]);

  const choose = (next: Chosen) => {
    const old = data.layers[(focused.value && second.value ? second.value : first.value).layer]!;
    const layer = data.layers[next.layer]!;
    batch(() => {
      if (focused.value === 1 && second.value) second.value = next;
      else first.value = next;
      if (old.queries !== layer.queries || old.keys !== layer.keys) {
        viewport.value = whole(layer.queries, layer.keys);
        pinned.value = NOTHING;
      }
    });
  };
  const current = focused.value === 1 && second.value ? second.value : first.value;
  const chosen = {
    get value() {
      return current;
    },
    set value(next: Chosen) {
      choose(next);
    },
  } as typeof first;

  const compare = () => {
    batch(() => {
      if (second.value) {
        second.value = null;
        focused.value = 0;
      } else {
        second.value = partner(data, first.value);
        focused.value = 1;
        const other = data.layers[second.value.layer]!;
        if (other.queries !== layer.queries || other.keys !== layer.keys) {
          viewport.value = whole(
            Math.max(layer.queries, other.queries),
            Math.max(layer.keys, other.keys),
          );
        }
      }
    });
  };

  const keyToken = useMemo(() => tokenOf(data, layer, "key"), [data, layer]);
  const hits = search.value ? matches(layer.keys, keyToken, search.value) : [];
  const goTo = (number: number) => {
    const key = hits[((number % hits.length) + hits.length) % hits.length];
    if (key === undefined) return;
    const own = layer.query.text !== null && layer.query.text === layer.key.text;
    const query = own ? key - (layer.keys - layer.queries) : null;
    batch(() => {
      at.value = ((number % hits.length) + hits.length) % hits.length;
      pinned.value = { query: query !== null && query >= 0 ? query : null, key };
      viewport.value = including(viewport.value, pinned.value, layer.queries, layer.keys);
    });
  };

  const picture = async (kind: "svg" | "png") => {
    const panels = [first.value, ...(second.value ? [second.value] : [])];
    const figures = panels.flatMap((each, place) => {
      const tile = drawn[place]!.value;
      const layer = data.layers[each.layer]!;
      return tile?.values.length
        ? [
            {
              title: `Layer ${layerName(data, each.layer)}, head ${each.head}`,
              tile,
              view: viewport.value,
              queries: layer.queries,
              keys: layer.keys,
              queryToken: tokenOf(data, layer, "query"),
              keyToken: tokenOf(data, layer, "key"),
            },
          ]
        : [];
    });
    if (!figures.length) return;
    const svg = toSvg(figures);
    const name = panels
      .map((each) => `layer-${layerName(data, each.layer)}-head-${each.head}`)
      .join("-");
    save(
      kind === "svg" ? new Blob([svg], { type: "image/svg+xml" }) : await toPng(svg),
      `${name}.${kind}`,
    );
  };

  const onKeyDown = (event: KeyboardEvent) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if ((event.target as Element).closest("dialog")) return; // its own keys close it
    const typing =
      event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement;
    if (event.key === "Escape") {
      pinned.value = NOTHING;
      hover.value = NOTHING;
      search.value = "";
      if (typing) (event.target as HTMLElement).blur();
    } else if (typing) {
      return;
    } else if (event.key === "/") {
      input.current?.focus();
    } else if (event.key === "[" || event.key === "]") {
      choose(next(data, current, event.key === "]" ? 1 : -1));
    } else if (event.key === "c") {
      compare();
    } else if (event.key === "l") {
      scale.value = scale.value === "log" ? "linear" : "log";
    } else {
      return;
    }
    event.preventDefault();
  };

  const root = useRef<HTMLDivElement>(null);
  useKeys(root, onKeyDown);
  const shared = { viewport, hover, pinned, search };
  const both = second.value;
  // A longer text is beside the map, where there is only one.
  const beside = !both && !isFew(layer);
  return (
    <div ref={root}>
      <Shell
        title={head.title}
        note={data.note}
        keys={KEYS}
        tools={
          <>
            <button type="button" class="ch-button" aria-pressed={both !== null} onClick={compare}>
              Compare
            </button>
            <ScaleButton />
            <button type="button" class="ch-button" onClick={() => void picture("png")}>
              PNG
            </button>
            <button type="button" class="ch-button" onClick={() => void picture("svg")}>
              SVG
            </button>
          </>
        }
      >
        <main class={`ch-heads${both ? " ch-two" : ""}`}>
          <div class="ch-left">
            <Overview
              data={data}
              source={source}
              chosen={chosen}
              other={both ? (focused.value ? first.value : both) : null}
            />
            {beside && (
              <HeadText data={data} source={source} chosen={first.value} shared={shared} />
            )}
          </div>
          <div class="ch-right">
            {layer.key.text !== null && (
              <form
                class="ch-search"
                role="search"
                onSubmit={(event) => {
                  event.preventDefault();
                  if (hits.length)
                    goTo(pinned.value.key === hits[at.value] ? at.value + 1 : at.value);
                }}
              >
                <input
                  ref={input}
                  type="search"
                  placeholder="Search for a token"
                  aria-label="Search for a token"
                  value={search.value}
                  onInput={(event) => {
                    search.value = event.currentTarget.value;
                    at.value = 0;
                  }}
                />
                <span role="status">
                  {search.value &&
                    (hits.length
                      ? `${pinned.value.key === hits[at.value] ? `${at.value + 1} of ` : ""}${hits.length.toLocaleString("en")}`
                      : "not there")}
                </span>
              </form>
            )}
            <div class="ch-panels">
              {[first.value, ...(both ? [both] : [])].map((each, place) => (
                <div
                  key={place}
                  class={both && focused.value === place ? "ch-focused" : ""}
                  onFocusIn={() => (focused.value = place as 0 | 1)}
                  onPointerDown={() => (focused.value = place as 0 | 1)}
                >
                  <Panel
                    data={data}
                    source={source}
                    chosen={each}
                    shared={shared}
                    drawn={drawn[place]!}
                    withText={!beside}
                  />
                </div>
              ))}
            </div>
          </div>
        </main>
      </Shell>
    </div>
  );
}

/** The head to begin with: one that points at certain tokens, not at the first one. */
function interesting(data: HeadsData): Chosen {
  let best: Chosen = { layer: 0, head: 0 };
  let most = -1;
  for (const [layer, { rows, run }] of data.layers.entries()) {
    if (run > 0) break;
    for (const [head, row] of rows.entries()) {
      const points = data.roles.matching.includes(row.role) ? 1 : 0;
      if (points + score(row) > most) [best, most] = [{ layer, head }, points + score(row)];
    }
  }
  return best;
}

/** Whom a head is compared with at first: the same head of the other run, or the next one. */
function partner(data: HeadsData, chosen: Chosen): Chosen {
  const { run, name } = data.layers[chosen.layer]!;
  const others = data.layers.flatMap((each, place) => (each.run === run ? [] : [place]));
  if (!others.length) return next(data, chosen, 1);
  // Another model calls its layers otherwise, and may have fewer of them, and of heads.
  const within = chosen.layer - data.layers.findIndex((each) => each.run === run);
  const named = others.find((place) => data.layers[place]!.name === name);
  const layer = named ?? others[Math.min(within, others.length - 1)]!;
  return { layer, head: Math.min(chosen.head, data.layers[layer]!.heads - 1) };
}

function next(data: HeadsData, { layer, head }: Chosen, step: 1 | -1): Chosen {
  const every = data.layers.flatMap((each, place) =>
    each.rows.map((_, number) => ({ layer: place, head: number })),
  );
  const now = every.findIndex((each) => each.layer === layer && each.head === head);
  return every[(now + step + every.length) % every.length]!;
}
