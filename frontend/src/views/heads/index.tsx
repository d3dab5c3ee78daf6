// The heads of a model: all of them as small maps, and one or two of them closely.

import { useMemo, useRef } from "preact/hooks";
import { useAddress } from "../../shared/address";
import { put, readFields, signalsOf, valuesOf } from "../../shared/fields";
import { useNewLook } from "../../shared/look";
import { including, type Point } from "../../shared/map";
import { nextScale } from "../../shared/scale";
import { Shell } from "../../shared/shell";
import { computed, type Signal, signal, useSignal } from "../../shared/signals";
import type { Tile, ViewProps } from "../../source";
import * as actions from "./actions";
import { Answers, useAnswers } from "./ask";
import { type HeadsData, isFew } from "./data";
import { DifferencePanel, useDifferences } from "./differences";
import { Filters } from "./filters";
import { Guide, KEYS } from "./guide";
import { type Chosen, same } from "./names";
import { Overview } from "./overview";
import { HeadText, Panel, type Shared } from "./panel";
import { photosOf } from "./photo";
import { Search } from "./search";
import { startOf } from "./start";
import { FIELDS, NOTHING, type ViewState, writeState } from "./state";

export function Heads({ head, source }: ViewProps) {
  const data = head.data as HeadsData;
  const root = useRef<HTMLDivElement>(null);
  const input = useRef<HTMLInputElement>(null);
  const [start, gone] = useMemo(() => {
    const gone: string[] = [];
    return [startOf(data, gone), gone];
  }, [data]);
  const view = useMemo(() => signalsOf(start), [start]);
  const look = useNewLook(view.theme, view.scale);
  const second = useSignal(false);
  const hover = useSignal<Point>(NOTHING);
  const search = useSignal("");
  const drawn = useMemo(() => [signal<Tile | null>(null), signal<Tile | null>(null)] as const, []);
  const ends = useMemo(() => [signal(0), signal(0)] as const, []);
  const [top, end] = useMemo(() => {
    const larger = (of: (place: 0 | 1) => number | undefined) =>
      computed(() => Math.max(of(0) ?? 0, (view.with.value && of(1)) || 0));
    return [larger((place) => drawn[place].value?.top), larger((place) => ends[place].value)];
  }, [view, drawn, ends]);
  const state = valuesOf<ViewState>(view);
  const shown = { ...state, second: second.value };
  const act = ({ second: other = second.value, ...change }: Partial<actions.Shown>) => {
    second.value = other;
    put<ViewState>(view, change);
  };

  const shownBy = (state: ViewState) => ({
    text: writeState(state, data),
    // Another view on the way back.
    step: JSON.stringify([state.head, state.with, state.pin]),
  });
  const missing = useAddress(
    root,
    shownBy(state),
    (text) => {
      const missing: string[] = [];
      // What the page writes names its head; a link that does not is about the start.
      const given = text.includes("head=") ? { head: start.head } : start;
      const next = readFields(FIELDS, text, data, given, missing);
      act({ ...next, second: false });
      return { ...shownBy(next), missing };
    },
    gone,
  );

  const current = actions.current(shown);
  const { with: both, pin, embed } = state;
  const layer = data.layers[state.head.layer]!;
  const choose = (head: Chosen) => act(actions.choose(data, shown, head));
  const pairUp = (head: Chosen) => {
    if (!same(head, state.head)) act(actions.pairUp(data, head));
  };
  const chooseSeveral = (heads: Chosen[]) => act(actions.chooseSeveral(data, shown, heads));
  const compare = () => act(actions.compare(data, shown));
  const subtract = () => {
    if (!both) compare();
    view.minus.value = !state.minus;
  };
  const turn = (field: Signal<boolean>) => () => (field.value = !field.value);
  const subtracted = state.minus && both !== null;
  const apart = useDifferences(data, source, state.head, subtracted);
  const answers = useAnswers(data, source, layer, pin, state.without);
  const panels = both ? [state.head, both] : [state.head];
  const shared: Shared = { ...view, hover, search, top, end, chooseSeveral };
  const does = {
    Escape: () => {
      view.pin.value = NOTHING;
      hover.value = NOTHING;
      search.value = "";
    },
    "/": () => input.current?.focus(),
    "[": () => act(actions.step(data, shown, -1)),
    "]": () => act(actions.step(data, shown, 1)),
    c: compare,
    d: subtract,
    l: () => (view.scale.value = nextScale(state.scale)),
    m: () => act(actions.wholeLayer(data, shown)),
    w: () => act(actions.toggleWithout(state)),
    y: turn(view.why),
  };

  // A longer text is beside the map, where there is only one.
  const beside = !both && !isFew(layer) && !photosOf(data, layer).length;
  const names = [both && !subtracted && "ch-two", embed && "ch-embed"];
  return (
    <Shell
      root={root}
      title={head.title}
      note={data.note}
      bare={embed}
      guide={<Guide />}
      keys={KEYS}
      does={does}
      look={look}
      missing={missing}
      skip={["the map", ".ch-map-canvas"]}
      tools={
        <>
          <button type="button" class="ch-button" aria-pressed={both !== null} onClick={compare}>
            Compare
          </button>
          {both && (
            <button type="button" class="ch-button" aria-pressed={state.minus} onClick={subtract}>
              A − B
            </button>
          )}
        </>
      }
    >
      <main class={["ch-heads", ...names].filter(Boolean).join(" ")}>
        <div class="ch-left">
          <Overview
            data={data}
            source={source}
            shown={shown}
            order={view.order}
            choose={subtracted ? pairUp : choose}
            chooseSeveral={chooseSeveral}
            answers={subtracted ? apart : (answers?.answers ?? null)}
            apart={subtracted}
          />
          {answers && <Answers data={data} answered={answers} chosen={current} choose={choose} />}
          {beside && <HeadText data={data} source={source} chosen={state.head} shared={shared} />}
        </div>
        <div class="ch-right">
          <div class="ch-top">
            <Search
              data={data}
              layer={layer}
              input={input}
              search={search}
              pinned={pin}
              goTo={(point) =>
                act({ pin: point, view: including(state.view, point, layer.queries, layer.keys) })
              }
            />
            <Filters
              data={data}
              layer={data.layers[current.layer]!}
              without={view.without}
              least={view.least}
              links={!subtracted}
            />
          </div>
          {both && subtracted && (
            <DifferencePanel
              data={data}
              source={source}
              pair={[state.head, both]}
              shared={shared}
              drawn={drawn[0]}
            />
          )}
          <div class="ch-panels" hidden={subtracted}>
            {!subtracted &&
              panels.map((each, place) => (
                <div
                  key={place}
                  class={both && Number(second.value) === place ? "ch-focused" : ""}
                  onFocusIn={() => (second.value = place === 1)}
                  onPointerDown={() => (second.value = place === 1)}
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
  );
}
