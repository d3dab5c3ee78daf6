// The heads of a model: all of them as small maps, and one or two of them closely.

import { batch, computed, signal, useSignal } from "@preact/signals";
import { useMemo, useRef } from "preact/hooks";
import { useKeys } from "../../shared/keys";
import { ScaleChoice } from "../../shared/legend";
import { including, type Point, whole } from "../../shared/map";
import { nextScale, scale } from "../../shared/scale";
import { Shell } from "../../shared/shell";
import { chosen as chosenTheme } from "../../shared/theme";
import type { Tile, ViewProps } from "../../source";
import { CopyLink, useAddress } from "./address";
import { Answers, useAnswers } from "./ask";
import { type HeadsData, isFew } from "./data";
import { save, toPng, toSvg } from "./figure";
import type { Kind } from "./filter";
import { Filters } from "./filters";
import { Guide } from "./guide";
import { type Chosen, headName, layerName, same, titleOf } from "./names";
import { type Order, Overview } from "./overview";
import { HeadText, NOTHING, Panel } from "./panel";
import { fitsColumns, HUES, headsOf, type Mix, titleOfSeveral } from "./several";
import { found, next, partner, startOf } from "./start";
import type { ViewState } from "./state";
import { tokenOf } from "./words";

const KEYS: [string, string][] = [
  ["arrows", "Go from head to head, cell to cell, or token to token, wherever the focus is"],
  ["Enter", "Pin the token or the cell; once more, or Escape, lets go"],
  ["Shift + Enter", "On a token, with another one pinned: ask the heads for the link to it"],
  [
    "+  −  0",
    "On the map: zoom in, zoom out, show all; with a mouse Ctrl and the wheel, or two fingers",
  ],
  ["Shift + arrows", "On the map: move it"],
  ["[  ]", "The head before, the next head"],
  ["/", "Search for a token; Enter goes to the next one"],
  ["c", "Compare with another head"],
  ["l", "Colours by the square root, linear or logarithmic"],
  [
    "Ctrl + Enter",
    "On a head: show it too, with a colour of its own; with a mouse Ctrl and a click",
  ],
  ["m", "The mean of all heads of the layer; once more the head alone"],
  ["w", "Without the first token and special tokens; once more with them"],
  ["f", "The map alone, as large as there is room; once more goes back"],
  ["?", "This help"],
];

export function Heads({ head, source }: ViewProps) {
  const data = head.data as HeadsData;
  const root = useRef<HTMLDivElement>(null);
  const start = useMemo(() => startOf(data), [data]);
  const first = useSignal<Chosen>(start.first);
  const second = useSignal<Chosen | null>(start.second);
  const focused = useSignal<0 | 1>(0);
  const layer = data.layers[first.value.layer]!;
  const viewport = useSignal(start.viewport ?? whole(layer.queries, layer.keys));
  const hover = useSignal<Point>(NOTHING);
  const pinned = useSignal<Point>(start.pinned);
  const order = useSignal<Order>(start.order);
  const role = useSignal(start.role);
  const search = useSignal("");
  const full = useSignal(start.full);
  const without = useSignal<Kind[]>(start.without);
  const least = useSignal(start.least);
  const several = useSignal<Chosen[]>(start.several);
  const mix = useSignal<Mix>(start.mix);
  const columns = useSignal(start.columns);
  const adding = useSignal(false);
  const at = useSignal(0);
  const drawn = useMemo(() => [signal<Tile | null>(null), signal<Tile | null>(null)] as const, []);
  const ends = useMemo(() => [signal(0), signal(0)] as const, []);
  const top = useMemo(
    () => computed(() => larger(drawn[0].value?.top, second.value && drawn[1].value?.top)),
    [drawn],
  );
  const end = useMemo(
    () => computed(() => larger(ends[0].value, second.value && ends[1].value)),
    [ends],
  );
  const input = useRef<HTMLInputElement>(null);
  useMemo(() => {
    scale.value = start.scale;
    if (start.theme) chosenTheme.value = start.theme;
  }, [start]);

  const state = {
    get value(): ViewState {
      const { queries, keys } = data.layers[first.value.layer]!;
      const [view, all] = [viewport.value, whole(queries, keys)];
      return {
        first: first.value,
        second: second.value,
        pinned: pinned.value,
        viewport: view.rows === all.rows && view.columns === all.columns ? null : view,
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
      };
    },
    set value(next: ViewState) {
      const { queries, keys } = data.layers[next.first.layer]!;
      batch(() => {
        [first.value, second.value, pinned.value] = [next.first, next.second, next.pinned];
        viewport.value = next.viewport ?? whole(queries, keys);
        [scale.value, chosenTheme.value] = [next.scale, next.theme];
        [order.value, role.value, full.value] = [next.order, next.role, next.full];
        [without.value, least.value] = [next.without, next.least];
        [several.value, mix.value, columns.value] = [next.several, next.mix, next.columns];
        focused.value = 0;
      });
    },
  };
  const inAddress = useAddress(root, data, start, state);

  const choose = (next: Chosen) => {
    const old = data.layers[(focused.value && second.value ? second.value : first.value).layer]!;
    const layer = data.layers[next.layer]!;
    batch(() => {
      if (focused.value === 1 && second.value) second.value = next;
      else first.value = next;
      several.value = [];
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

  // Several heads are shown as one, of the texts of the first of them, with none beside them.
  const together = {
    get value() {
      return several.value;
    },
    set value(next: Chosen[]) {
      batch(() => {
        if (next[0] && !next.some((each) => same(each, first.value))) choose(next[0]);
        if (next.length > 1 && !several.value.length && next.length <= HUES) columns.value = true;
        several.value = next.length > 1 ? next : [];
        second.value = null;
        focused.value = 0;
      });
    },
  } as typeof several;

  const compare = () => {
    batch(() => {
      if (second.value) {
        second.value = null;
        focused.value = 0;
      } else {
        second.value = partner(data, first.value);
        several.value = [];
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

  const wanted = search.value;
  const hits = useMemo(() => (wanted ? found(data, layer, wanted) : []), [data, layer, wanted]);
  const goTo = (number: number) => {
    const place = number % hits.length;
    const point = hits[place];
    if (!point) return;
    batch(() => {
      at.value = place;
      pinned.value = point;
      viewport.value = including(viewport.value, pinned.value, layer.queries, layer.keys);
    });
  };

  const answers = useAnswers(data, source, layer, pinned.value, without.value);
  const hit = hits[at.value];
  const isAt = hit?.query === pinned.value.query && hit?.key === pinned.value.key;

  const picture = async (kind: "svg" | "png") => {
    const panels = [first.value, ...(second.value ? [second.value] : [])];
    const figures = panels.flatMap((each, place) => {
      const tile = drawn[place]!.value;
      const layer = data.layers[each.layer]!;
      return tile?.values.length
        ? [
            {
              title: several.value.length
                ? titleOfSeveral(data, several.value, mix.value)
                : titleOf(data, each),
              tile,
              end: top.value,
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
      .map((each) => `layer-${layerName(data, each.layer)}-head-${headName(data, each)}`)
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
    } else if (event.key === "m") {
      const heads = headsOf(data, current.layer);
      if (several.value.length) several.value = [];
      else if (layer.weights && heads.length > 1) together.value = heads;
    } else if (event.key === "w") {
      without.value = without.value.length ? [] : ["first", "special"];
    } else if (event.key === "f") {
      full.value = !full.value;
    } else if (event.key === "l") {
      scale.value = nextScale(scale.value);
    } else {
      return;
    }
    event.preventDefault();
  };

  useKeys(root, onKeyDown);
  const shared = {
    viewport,
    hover,
    pinned,
    search,
    without,
    least,
    several: together,
    mix,
    columns,
    top,
    end,
  };
  const both = second.value;
  // A longer text is beside the map, where there is only one.
  const beside = !both && !isFew(layer) && !(columns.value && fitsColumns(layer));
  return (
    <div ref={root}>
      <Shell
        title={head.title}
        note={data.note}
        guide={<Guide layer={layer} />}
        keys={KEYS}
        tools={
          <>
            <button type="button" class="ch-button" aria-pressed={both !== null} onClick={compare}>
              Compare
            </button>
            {inAddress && <CopyLink />}
            <ScaleChoice />
            <button type="button" class="ch-button" onClick={() => void picture("png")}>
              PNG
            </button>
            <button type="button" class="ch-button" onClick={() => void picture("svg")}>
              SVG
            </button>
          </>
        }
      >
        <main class={`ch-heads${both ? " ch-two" : ""}${full.value ? " ch-full" : ""}`}>
          <div class="ch-left">
            <Overview
              data={data}
              source={source}
              chosen={chosen}
              several={together}
              adding={adding}
              other={both ? (focused.value ? first.value : both) : null}
              order={order}
              only={role}
              answers={answers}
            />
            {answers && (
              <Answers
                data={data}
                about={layer}
                pinned={pinned.value}
                answers={answers}
                chosen={current}
                choose={choose}
                queryToken={tokenOf(data, layer, "query")}
                keyToken={tokenOf(data, layer, "key")}
              />
            )}
            {beside && (
              <HeadText data={data} source={source} chosen={first.value} shared={shared} />
            )}
          </div>
          <div class="ch-right">
            {(layer.key.text ?? layer.query.text) !== null && (
              <form
                class="ch-search"
                role="search"
                onSubmit={(event) => {
                  event.preventDefault();
                  if (hits.length) goTo(isAt ? at.value + 1 : at.value);
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
                      ? `${isAt ? `${at.value + 1} of ` : ""}${hits.length.toLocaleString("en")}`
                      : "not there")}
                </span>
              </form>
            )}
            <Filters
              data={data}
              source={source}
              chosen={current}
              without={without}
              least={least}
              columns={columns}
            />
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
                    ownEnd={ends[place]!}
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

function larger(a: number | undefined, b: number | null | undefined): number {
  return Math.max(a ?? 0, b ?? 0);
}
