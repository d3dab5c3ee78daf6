// The heads of a model: all of them as small maps, and one or two of them closely.

import { batch, computed, signal, useSignal } from "@preact/signals";
import { useMemo, useRef } from "preact/hooks";
import { useKeys } from "../../shared/keys";
import { including, type Point, whole } from "../../shared/map";
import { nextScale, number, scale } from "../../shared/scale";
import { Shell } from "../../shared/shell";
import type { Tile, ViewProps } from "../../source";
import { Missing, useAddress } from "./address";
import { Answers, useAnswers } from "./ask";
import { type HeadsData, isFew } from "./data";
import { Depth } from "./depth_view";
import { mostDifferent } from "./difference";
import { DifferencePanel, MostDifferent, useDifferences } from "./differences";
import { save, toPng, toSvg } from "./figure";
import { Filters } from "./filters";
import { Guide, KEYS } from "./guide";
import { type Chosen, headName, layerName, same, titleOf } from "./names";
import { Overview } from "./overview";
import { HeadText, NOTHING, Panel, pin } from "./panel";
import { photoOf } from "./photo";
import { usePlaying } from "./playing";
import { fitsColumns, HUES, headsOf, titleOfSeveral } from "./several";
import { soundOf } from "./sound";
import { found, next, partner, startOf } from "./start";
import { Tools } from "./tools";
import { useViewState } from "./view_state";
import { tokenOf } from "./words";

export function Heads({ head, source }: ViewProps) {
  const data = head.data as HeadsData;
  const root = useRef<HTMLDivElement>(null);
  const start = useMemo(() => startOf(data), [data]);
  const view = useViewState(data, start);
  const { first, second, focused, viewport, pinned, order, role, full, state } = view;
  const { without, least, several, mix, columns, minus, why, depth, embed } = view;
  const layer = data.layers[first.value.layer]!;
  const hover = useSignal<Point>(NOTHING);
  const search = useSignal("");
  const adding = useSignal(false);
  const playing = useSignal(false);
  const at = useSignal(0);
  const drawn = useMemo(() => [signal<Tile | null>(null), signal<Tile | null>(null)] as const, []);
  const ends = useMemo(() => [signal(0), signal(0)] as const, []);
  const top = useMemo(
    () => computed(() => larger(drawn[0].value?.top, second.value && drawn[1].value?.top)),
    [drawn, second.value],
  );
  const end = useMemo(
    () => computed(() => larger(ends[0].value, second.value && ends[1].value)),
    [ends, second.value],
  );
  const input = useRef<HTMLInputElement>(null);
  const address = useAddress(root, data, start, state);

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

  /** A head beside its partner of the other run, or beside the one that all are compared with. */
  const pairUp = (head: Chosen) => {
    batch(() => {
      second.value = data.runs.length > 1 ? partner(data, head) : head;
      if (data.runs.length > 1) first.value = head;
    });
  };

  const compare = () => {
    batch(() => {
      if (second.value) {
        second.value = null;
        focused.value = 0;
      } else {
        const other = partner(data, first.value);
        second.value = other;
        several.value = [];
        focused.value = 1;
        if (data.runs.length < 2) {
          const better = mostDifferent(data, source, first.value);
          // Unless somebody has chosen one meanwhile.
          void better.then((head) => head && second.value === other && (second.value = head));
        }
        const { queries, keys } = data.layers[other.layer]!;
        if (queries !== layer.queries || keys !== layer.keys) {
          viewport.value = whole(Math.max(layer.queries, queries), Math.max(layer.keys, keys));
        }
      }
    });
  };

  const subtract = () => {
    if (!second.value) compare();
    minus.value = !minus.value;
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

  const subtracted = minus.value && second.value !== null;
  const apart = useDifferences(data, source, first.value, subtracted);
  const answers = useAnswers(data, source, layer, pinned.value, without.value);
  const hit = hits[at.value];
  const isAt = hit?.query === pinned.value.query && hit?.key === pinned.value.key;

  const picture = async (kind: "svg" | "png") => {
    const both = second.value && !subtracted ? [second.value] : [];
    const panels = [first.value, ...both];
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
    } else if (event.key === "y") {
      why.value = !why.value;
    } else if (event.key === "t") {
      depth.value = !depth.value;
    } else if (event.key === "p") {
      playing.value = !playing.value;
    } else if (event.key === "d") {
      subtract();
    } else if (event.key === "f") {
      full.value = !full.value;
    } else if (event.key === "l") {
      scale.value = nextScale(scale.value);
    } else {
      return;
    }
    event.preventDefault();
  };

  usePlaying(playing, hover, layer);
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
    why,
    top,
    end,
  };
  const both = second.value;
  // A longer text is beside the map, where there is only one.
  const inColumns = columns.value && fitsColumns(layer);
  const beside =
    !both && !isFew(layer) && !inColumns && !photoOf(data, layer) && !soundOf(data, layer);
  return (
    <div ref={root}>
      <Shell
        title={head.title}
        note={data.note}
        bare={embed.value}
        guide={<Guide layer={layer} />}
        keys={KEYS}
        tools={
          <Tools
            comparing={both !== null}
            minus={minus}
            playing={playing}
            linked={address.there}
            compare={compare}
            subtract={subtract}
            picture={(kind) => void picture(kind)}
          />
        }
      >
        <Missing missing={address.missing} />
        <main
          class={`ch-heads${both && !subtracted ? " ch-two" : ""}${full.value ? " ch-full" : ""}${embed.value ? " ch-embed" : ""}`}
        >
          <div class="ch-left">
            <Overview
              data={data}
              source={source}
              chosen={chosen}
              several={together}
              adding={adding}
              query={pinned.value.query}
              other={both ? (focused.value ? first.value : both) : null}
              order={order}
              only={role}
              answers={subtracted ? apart : answers}
              apart={subtracted}
            />
            {apart && (
              <MostDifferent data={data} answers={apart} first={first.value} choose={pairUp} />
            )}
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
            <div class="ch-top">
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
                        ? `${isAt ? `${at.value + 1} of ` : ""}${number(hits.length)}`
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
                links={!subtracted}
                alone={several.value.length === 0}
              />
            </div>
            {both && subtracted && (
              <DifferencePanel
                data={data}
                source={source}
                pair={[first.value, both]}
                shared={shared}
                drawn={drawn[0]}
              />
            )}
            <div class="ch-panels" hidden={subtracted}>
              {!subtracted &&
                [first.value, ...(both ? [both] : [])].map((each, place) => (
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
            {!both && (
              <Depth
                data={data}
                source={source}
                layer={layer}
                query={pinned.value.query}
                queryToken={tokenOf(data, layer, "query")}
                keyToken={tokenOf(data, layer, "key")}
                open={depth}
                onPin={(point) => pin(point, layer, shared)}
              />
            )}
          </div>
        </main>
      </Shell>
    </div>
  );
}

function larger(a: number | undefined, b: number | null | undefined): number {
  return Math.max(a ?? 0, b ?? 0);
}
